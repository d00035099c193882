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

RopeRuns::RopeRuns(const std::vector<double>& frequencies) : frequencies_(frequencies) {
  for (uint32_t position = 0; position < kRun; ++position) {
    for (double frequency : frequencies_) {
      cos_.push_back(std::cos(frequency * position));
      sin_.push_back(std::sin(frequency * position));
    }
  }
}

void RopeRuns::Fill(uint32_t first, uint32_t count, float* cos, float* sin) const {
  const size_t half = frequencies_.size();
  std::vector<double> first_cos;
  std::vector<double> first_sin;
  for (double frequency : frequencies_) {
    first_cos.push_back(std::cos(frequency * first));
    first_sin.push_back(std::sin(frequency * first));
  }
  for (size_t at = 0, end = count * half; at < end; at += half) {
    for (size_t i = 0; i < half; ++i) {
      const double c = cos_[at + i];
      const double s = sin_[at + i];
      cos[at + i] = static_cast<float>(first_cos[i] * c - first_sin[i] * s);
      sin[at + i] = static_cast<float>(first_sin[i] * c + first_cos[i] * s);
    }
  }
}

}  // namespace kvern
