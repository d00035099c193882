// safetensors headers as hostile input.
#include "schemas/files/safetensors.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<SafetensorsTensor>> ParseFile(const std::string& bytes) {
  return ParseSafetensors(MemorySource("mem.safetensors", bytes));
}

std::string Refusal(const std::string& header, size_t buffer_bytes = 4) {
  return ErrorOf(ParseFile(SafetensorsFile(header, std::string(buffer_bytes, '\0'))));
}

// One F32 tensor "t" of 4 bytes with one part of its entry replaced.
std::string Entry(const std::string& dtype = "\"F32\"", const std::string& shape = "[1]",
                  const std::string& offsets = "[0,4]") {
  return absl::StrCat("{\"t\":{\"dtype\":", dtype, ",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}}");
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirBytes) {
  auto tensors = ParseFile(SafetensorsFile(
      R"({"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},"__metadata__":{"k":"v"},)"
      R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},)"
      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}}   )",
      std::string(8, '\0')));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[1].name, "none");
  EXPECT_EQ((*tensors)[1].bytes, 0u);
  EXPECT_EQ((*tensors)[2].name, "b");
  EXPECT_EQ((*tensors)[2].shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ((*tensors)[2].offset, (*tensors)[0].offset + 4);
}

TEST(Safetensors, EveryPrefixIsRefused) {
  std::string whole = TinyFolder().files["model.safetensors"];
  ASSERT_TRUE(ParseFile(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_FALSE(ParseFile(whole.substr(0, length)).ok()) << length << " bytes";
  }
  EXPECT_THAT(ErrorOf(ParseFile(whole + "x")), HasSubstr("the tensors end at"));
}

TEST(Safetensors, EveryByteOfTheHeaderMayBeWrong) {
  std::string whole = TinyFolder().files["model.safetensors"];
  size_t head = whole.find("}}") + 2;
  size_t refused = 0;
  for (size_t i = 0; i < head; ++i) {
    for (char change : {'\x01', '\x10', '\x80'}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ change);
      if (!ParseFile(changed).ok()) ++refused;
    }
  }
  EXPECT_GT(refused, head);
}

TEST(Safetensors, HeaderLength) {
  for (uint64_t length : {uint64_t{1} << 50, ~uint64_t{0}, uint64_t{9}}) {
    EXPECT_THAT(ErrorOf(ParseFile(Bytes(length) + "{}")),
                AllOf(HasSubstr(absl::StrCat("header length ", length)),
                      HasSubstr("the file has 10 bytes")));
  }
  EXPECT_THAT(Refusal(""), HasSubstr("must be '{'"));
  EXPECT_THAT(Refusal(" {}"), HasSubstr("must be '{'"));
  EXPECT_THAT(Refusal("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(ParseFile(
                  SafetensorsFile("{" + std::string(kMaxSafetensorsHeadBytes, ' ') + "}", ""))),
              HasSubstr("the limit is 16777216"));
}

TEST(Safetensors, EntriesThatAreNotEntries) {
  EXPECT_EQ(Refusal(Entry()), "opened");
  for (const char* header :
       {R"({"t":1})", R"({"t":null})", R"({"t":"F32"})", R"({"t":[]})", R"({"t":{}})", R"([])",
        R"({"t":{"dtype":"F32","shape":[1]}})", R"({"t":{"dtype":"F32","data_offsets":[0,4]}})",
        R"({"t":{"shape":[1],"data_offsets":[0,4]}})",
        R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})",
        R"({"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
        R"({"t":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})",
        R"({"__metadata__":{"k":1}})", R"({"__metadata__":{"k":{}}})", R"({"__metadata__":[]})",
        R"({"__metadata__":{},"__metadata__":{}})", R"({"t":{"dtype":{"F32":1}}})",
        R"({"t":{"shape":[[1]]}})", R"({"t":{"dtype":["F32"]}})"}) {
    EXPECT_NE(Refusal(header), "opened") << header;
  }
}

TEST(Safetensors, Dtype) {
  EXPECT_THAT(Refusal(Entry("\"F31\"")), AllOf(HasSubstr("'t'"), HasSubstr("'F31'")));
  EXPECT_THAT(Refusal(Entry("4")), HasSubstr("'t' has 4 where it may not (in 'dtype')"));
  EXPECT_THAT(Refusal(Entry("\"F16\"")), AllOf(HasSubstr("has 2 bytes"), HasSubstr("span 4")));
}

TEST(Safetensors, Numbers) {
  for (const char* number :
       {"-1", "1.0", "1e400", "18446744073709551616", "true", "\"1\"", "null", "[1]", "1e0"}) {
    EXPECT_NE(Refusal(Entry("\"F32\"", absl::StrCat("[", number, "]"))), "opened") << number;
    EXPECT_NE(Refusal(Entry("\"F32\"", "[1]", absl::StrCat("[0,", number, "]"))), "opened");
  }
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[4194305,4194305,211106198978564]")),
              HasSubstr("overflows 64 bits"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1,1,1,1,1,1,1,1,1]")), HasSubstr("more than 8"));
}

TEST(Safetensors, Offsets) {
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[0]")), HasSubstr("has 1 data_offsets"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[0,4,4]")), HasSubstr("more than 2"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[4,0]")), HasSubstr("end is before"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[4,8]")), HasSubstr("beyond the buffer of 4"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[18446744073709551611,18446744073709551615]")),
              HasSubstr("beyond the buffer"));
  EXPECT_THAT(Refusal(Entry("\"F32\"", "[1]", "[4,8]"), 8), HasSubstr("leaves a hole"));
  EXPECT_THAT(Refusal(Entry(), 8), HasSubstr("end at byte 4 of a buffer of 8"));
  EXPECT_THAT(Refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})"),
              AllOf(HasSubstr("'b'"), HasSubstr("overlaps 'a'")));
}

TEST(Safetensors, Names) {
  auto named = [](const std::string& name) {
    return absl::StrCat("{\"", name,
                        "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
  };
  EXPECT_EQ(Refusal(named("../odd but harmless")), "opened");
  EXPECT_THAT(Refusal(named("")), HasSubstr("0 bytes"));
  EXPECT_THAT(Refusal(named("a\\u0000b")), HasSubstr("control bytes"));
  EXPECT_THAT(Refusal(named("\xff")), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal(named(std::string(257, 'x'))), HasSubstr("257 bytes"));
  EXPECT_THAT(Refusal(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("t":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})"),
              AllOf(HasSubstr("'t'"), HasSubstr("twice")));
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  std::string deep = "{\"t\":" + std::string(1 << 20, '[');
  EXPECT_THAT(Refusal(deep), HasSubstr("nesting beyond the limit of 3"));
}

}  // namespace
}  // namespace kvern
