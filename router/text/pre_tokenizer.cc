#include "router/text/pre_tokenizer.h"

#include <utf8proc.h>

#include "router/text/utf8.h"

namespace kvern {
namespace {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther, kEnd };

// Unicode's White_Space property (PropList.txt); utf8proc has categories only.
bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

CharClass ClassOf(uint32_t code_point) {
  if (IsWhiteSpace(code_point)) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

// Walks over a text. With digits_alone a number ends the part like the end of the text.
class Cursor {
 public:
  Cursor(std::string_view text, size_t at, bool digits_alone, uint64_t* steps)
      : text_(text), at_(at), digits_alone_(digits_alone), steps_(steps) {
    Look();
  }

  size_t at() const { return at_; }
  CharClass char_class() const { return class_; }
  bool IsPlainSpace() const { return length_ == 1 && text_[at_] == ' '; }

  void Advance() {
    at_ += length_;
    Look();
  }

  // Goes to the end of the run of this class; returns where the run's last character begins.
  size_t SkipRun(CharClass wanted) {
    size_t last = at_;
    while (class_ == wanted) {
      last = at_;
      Advance();
    }
    return last;
  }

 private:
  void Look() {
    length_ = 0;
    class_ = CharClass::kEnd;
    if (at_ == text_.size()) return;
    ++*steps_;
    const Utf8Char character = ReadUtf8(text_.substr(at_));
    length_ = character.length;
    class_ = ClassOf(character.code_point);
    if (digits_alone_ && class_ == CharClass::kNumber) class_ = CharClass::kEnd;
  }

  std::string_view text_;
  size_t at_;
  bool digits_alone_;
  uint64_t* steps_;
  size_t length_ = 0;
  CharClass class_ = CharClass::kEnd;
};

// The length of 's 't 're 've 'm 'll 'd at the beginning of the text, or 0.
size_t ContractionLength(std::string_view text) {
  static constexpr std::string_view kContractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  if (text.front() != '\'') return 0;
  for (std::string_view contraction : kContractions) {
    if (text.starts_with(contraction)) return contraction.size();
  }
  return 0;
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  if (name == "gpt-2") return PreTokenizer(false);
  if (name == "smollm") return PreTokenizer(true);
  return Unimplemented("pre-tokenizer '", ToAbsl(name), "' is not known, known are: gpt-2, smollm");
}

size_t PreTokenizer::PartEnd(std::string_view text, size_t begin, uint64_t* steps) const {
  if (size_t length = ContractionLength(text.substr(begin)); length > 0) return begin + length;
  Cursor cursor(text, begin, digits_alone_, steps);
  // kEnd at the first character: a number that stands alone.
  if (cursor.char_class() == CharClass::kEnd) {
    return begin + ReadUtf8(text.substr(begin)).length;
  }
  if (cursor.IsPlainSpace()) {
    cursor.Advance();
    // " ?" takes the space along with the run that follows.
    if (cursor.char_class() == CharClass::kEnd) return cursor.at();
    if (cursor.char_class() != CharClass::kSpace) {
      cursor.SkipRun(cursor.char_class());
      return cursor.at();
    }
  } else if (cursor.char_class() != CharClass::kSpace) {
    cursor.SkipRun(cursor.char_class());
    return cursor.at();
  }
  // White space: all of it at the end of the part, else all but the last character, which may be
  // the prefix of what follows; a single one is a part of its own.
  const size_t last = cursor.SkipRun(CharClass::kSpace);
  if (cursor.char_class() == CharClass::kEnd || last == begin) return cursor.at();
  return last;
}

}  // namespace kvern
