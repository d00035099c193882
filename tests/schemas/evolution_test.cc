// The wire formats only grow: whatever is in schemas/baseline is in schemas/*.fbs, unchanged, and
// what was added since is in the baseline, too, so that it cannot change any more either. (flatc
// --conform does not see what was removed.)
#include <flatbuffers/reflection.h>
#include <flatbuffers/reflection_generated.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvern {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A schema as `flatc --schema` compiles it.
class CompiledSchema {
 public:
  explicit CompiledSchema(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    EXPECT_FALSE(bytes_.empty()) << path;
  }
  const reflection::Schema& get() const { return *reflection::GetSchema(bytes_.data()); }

 private:
  std::string bytes_;
};

std::string Folder(const char* which) { return absl::StrCat(KVERN_COMPILED_SCHEMAS, "/", which); }

std::string TypeName(const reflection::Schema& schema, const reflection::Type& type) {
  std::string name = absl::StrCat(static_cast<int>(type.base_type()), "/",
                                  static_cast<int>(type.element()), "/", type.fixed_length());
  if (type.index() < 0) return name;
  auto index = static_cast<flatbuffers::uoffset_t>(type.index());
  // Of scalars it is an enumeration's, of tables, structs and vectors of them an object's.
  bool object = type.base_type() == reflection::Obj || type.element() == reflection::Obj;
  return absl::StrCat(name, " ",
                      object ? schema.objects()->Get(index)->name()->str()
                             : schema.enums()->Get(index)->name()->str());
}

auto Traits(const reflection::Schema& schema, const reflection::Field& field) {
  return std::tuple(field.id(), field.offset(), TypeName(schema, *field.type()),
                    field.default_integer(), field.default_real(), field.deprecated(),
                    field.required(), field.optional());
}

// What `now` lacks of `before`, or has otherwise.
std::vector<std::string> Lost(const reflection::Schema& before, const reflection::Schema& now) {
  std::vector<std::string> lost;
  for (const reflection::Object* table : *before.objects()) {
    const reflection::Object* same = now.objects()->LookupByKey(table->name()->c_str());
    if (same == nullptr) {
      lost.push_back(table->name()->str() + " is gone");
      continue;
    }
    if (table->is_struct() != same->is_struct() || table->bytesize() != same->bytesize()) {
      lost.push_back(table->name()->str() + " has another layout");
    }
    for (const reflection::Field* field : *table->fields()) {
      std::string name = absl::StrCat(table->name()->str(), ".", field->name()->str());
      const reflection::Field* kept = same->fields()->LookupByKey(field->name()->c_str());
      if (kept == nullptr) {
        lost.push_back(name + " is gone");
      } else if (Traits(before, *field) != Traits(now, *kept)) {
        lost.push_back(name + " has changed");
      }
    }
  }
  for (const reflection::Enum* list : *before.enums()) {
    const reflection::Enum* same = now.enums()->LookupByKey(list->name()->c_str());
    if (same == nullptr) {
      lost.push_back(list->name()->str() + " is gone");
      continue;
    }
    for (const reflection::EnumVal* value : *list->values()) {
      const reflection::EnumVal* kept = same->values()->LookupByKey(value->value());
      if (kept == nullptr || kept->name()->str() != value->name()->str() ||
          TypeName(before, *value->union_type()) != TypeName(now, *kept->union_type())) {
        lost.push_back(absl::StrCat(list->name()->str(), ".", value->name()->str(),
                                    " is gone or has another number"));
      }
    }
  }
  return lost;
}

class Evolution : public ::testing::TestWithParam<const char*> {
 protected:
  CompiledSchema baseline_{Folder("baseline") + "/" + GetParam() + ".bfbs"};
  CompiledSchema now_{Folder("now") + "/" + GetParam() + ".bfbs"};
};

TEST_P(Evolution, NothingOfTheBaselineIsLostOrChanged) {
  EXPECT_THAT(Lost(baseline_.get(), now_.get()), IsEmpty());
}

TEST_P(Evolution, WhatWasAddedIsInTheBaseline) {
  EXPECT_THAT(Lost(now_.get(), baseline_.get()), IsEmpty()) << "add it to schemas/baseline";
}

INSTANTIATE_TEST_SUITE_P(Schemas, Evolution, ::testing::Values("client", "worker"));

TEST(EvolutionCheck, SeesWhatIsRemovedMovedOrRenumbered) {
  CompiledSchema before(Folder("check") + "/evolution_before.bfbs");
  CompiledSchema after(Folder("check") + "/evolution_after.bfbs");
  std::vector<std::string> lost = Lost(before.get(), after.get());
  for (const char* expected :
       {"Gone is gone", "Kept.removed is gone", "Kept.first has changed", "Kept.wider has changed",
        "Kept.other_default has changed", "Pair has another layout", "Color.Blue is gone",
        "Body.Last is gone"}) {
    EXPECT_THAT(lost, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(Lost(before.get(), before.get()), IsEmpty());
}

}  // namespace
}  // namespace kvern
