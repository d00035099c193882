#include "schemas/files/gguf_types.h"

#include <cstddef>

namespace kvern {
namespace {

// Source: ggml's enum ggml_type and the block structs behind it. Removed numbers are left out.
constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", 1, 4, FileDtype::kF32},
    {1, "F16", 1, 2, FileDtype::kF16},
    {2, "Q4_0", 32, 18, FileDtype::kQ4_0},
    {3, "Q4_1", 32, 20, FileDtype::kQ4_1},
    {6, "Q5_0", 32, 22, {}},
    {7, "Q5_1", 32, 24, {}},
    {8, "Q8_0", 32, 34, FileDtype::kQ8_0},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},
    {12, "Q4_K", 256, 144, {}},
    {13, "Q5_K", 256, 176, {}},
    {14, "Q6_K", 256, 210, {}},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, FileDtype::kBf16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, {}},
};

struct MetadataType {
  const char* name;
  uint64_t bytes;
};
constexpr MetadataType kMetadataTypes[kGgufTypeCount] = {
    {"uint8", 1},  {"int8", 1},    {"uint16", 2}, {"int16", 2},  {"uint32", 4},
    {"int32", 4},  {"float32", 4}, {"bool", 1},   {"string", 0}, {"array", 0},
    {"uint64", 8}, {"int64", 8},   {"float64", 8}};

}  // namespace

const GgmlType* FindGgmlType(uint32_t number) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

uint64_t GgufTypeBytes(GgufType type) { return kMetadataTypes[static_cast<size_t>(type)].bytes; }

const char* GgufTypeName(GgufType type) { return kMetadataTypes[static_cast<size_t>(type)].name; }

}  // namespace kvern
