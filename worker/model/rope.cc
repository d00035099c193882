#include "worker/model/rope.h"

#include <cmath>
#include <numbers>

namespace kvern {
namespace {

// Long waves are slowed down by `factor`, short ones stay, those between are blended.
double Stretch(double frequency, const RopeConfig::Llama3Scaling& scaling) {
  double wavelength = 2 * std::numbers::pi / frequency;
  double original = scaling.original_max_seq_len;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  double blend = (original / wavelength - scaling.low_freq_factor) /
                 (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& config, uint32_t head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double exponent = -2.0 * static_cast<double>(i) / head_dim;
    frequencies[i] = std::pow(config.theta, exponent);
    if (config.llama3) frequencies[i] = Stretch(frequencies[i], *config.llama3);
  }
  return frequencies;
}

void FillRopeRow(const std::vector<double>& frequencies, uint32_t position, float* cos,
                 float* sin) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double angle = frequencies[i] * position;
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace kvern
