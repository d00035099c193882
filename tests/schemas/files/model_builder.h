// Writers of small model files, right ones and wrong ones, byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schemas/files/checkpoint.h"

namespace kvern {

// The bytes of a number, little-endian.
template <typename T>
std::string Bytes(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// A GGUF file. Every field that a hostile file could set to anything can be set to anything.
struct GgufWriter {
  struct Key {
    std::string name;
    uint32_t type;
    std::string value;  // as it stands in the file
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // GGUF's order: the row length first
    uint32_t type;
    std::string data;
    std::optional<uint64_t> offset;  // instead of where the data are put
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> key_count;
  uint64_t alignment = 32;
  std::vector<Key> keys;
  std::vector<Tensor> tensors;

  static std::string String(const std::string& text) { return Bytes(uint64_t{text.size()}) + text; }

  void Uint32(const std::string& key, uint32_t value) { Put(key, 4, Bytes(value)); }
  void Float32(const std::string& key, float value) { Put(key, 6, Bytes(value)); }
  void Text(const std::string& key, const std::string& value) { Put(key, 8, String(value)); }
  void Texts(const std::string& key, const std::vector<std::string>& values);
  void Int32s(const std::string& key, const std::vector<int32_t>& values);
  // Adds the key, or replaces its value and type.
  void Put(const std::string& key, uint32_t type, std::string value);
  void Remove(const std::string& key);
  Tensor& Find(const std::string& tensor);

  std::string Build() const;
};

// A one-layer Llama in GGUF: hidden 4, 2 query heads, 1 KV head of 2, 3 tokens, F32, with a GPT-2
// tokenizer. Its tensor data end with the file.
GgufWriter TinyGguf();

// A safetensors file with this header text (its length is put in front) and buffer.
std::string SafetensorsFile(const std::string& header, const std::string& buffer);

struct SafetensorsWriter {
  // Adds a tensor of zeros after the last one; shapes rows first.
  void Add(const std::string& name, const std::string& dtype, uint64_t element_bytes,
           const std::vector<uint64_t>& shape);
  std::string Build() const { return SafetensorsFile("{" + entries + "}", buffer); }

  std::string entries;
  std::string buffer;
};

// The files of a folder; `Open` serves them from memory.
struct MemoryFolder {
  std::map<std::string, std::string> files;
  ModelFolder Folder() const;
};

// The same model as TinyGguf as config.json and model.safetensors.
MemoryFolder TinyFolder();

// A config.json of the tiny model with one field replaced (or added) by the JSON text `value`; an
// empty value removes the field.
std::string TinyConfig(const std::string& field = "", const std::string& value = "");

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(std::string bytes);
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(const GgufWriter& writer);

// The message of an error; "opened" when there is none.
template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& result) {
  return result.ok() ? "opened" : std::string(result.status().message());
}

}  // namespace kvern
