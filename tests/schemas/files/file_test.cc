// Files on disk: what is not a plain readable file is refused at once.
#include "schemas/files/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = ::testing::TempDir() + "kvern_files_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::string folder_;
};

TEST_F(FileTest, ReadsRanges) {
  auto file = File::Open(Write("f", "0123456789"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), 10u);
  std::string out(4, '\0');
  ASSERT_TRUE((*file)->ReadAt(6, std::as_writable_bytes(std::span(out))).ok());
  EXPECT_EQ(out, "6789");
  auto beyond = (*file)->ReadAt(7, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("beyond the end of the file (10 bytes)"));
  EXPECT_FALSE((*file)->ReadAt(~uint64_t{0}, std::as_writable_bytes(std::span(out))).ok());
}

TEST_F(FileTest, RefusesWhatIsNotARegularFile) {
  std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, folder_, std::string("/dev/zero")}) {
    EXPECT_THAT(ErrorOf(File::Open(path)), HasSubstr("not a regular file")) << path;
  }
  EXPECT_THAT(ErrorOf(Checkpoint::Open(fifo)), HasSubstr("not a regular file"));
  EXPECT_TRUE(absl::IsNotFound(File::Open(folder_ + "/none").status()));
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(folder_ + "/none").status()));
}

TEST_F(FileTest, AShrunkenFileIsAnError) {
  std::string path = Write("f", std::string(10000, 'x'));
  auto file = File::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  std::string out(200, '\0');
  auto status = (*file)->ReadAt(0, std::as_writable_bytes(std::span(out)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("shrank"));
}

TEST_F(FileTest, WeightsOfAShrunkenModelAreAnError) {
  std::string path = Write("m.gguf", TinyGguf().Build());
  auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(truncate(path.c_str(), 64), 0);
  std::vector<std::byte> out(16);
  const TensorInfo& norm = **(*checkpoint)->Find("model.norm.weight");
  EXPECT_THAT(std::string((*checkpoint)->ReadBytes(norm, 0, out).message()), HasSubstr("shrank"));
}

TEST_F(FileTest, OpensAFolderWithOrWithoutTrailingSlash) {
  for (const auto& [name, bytes] : TinyFolder().files) Write(name, bytes);
  for (const char* end : {"", "/", "//"}) {
    auto checkpoint = Checkpoint::Open(folder_ + end);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  }
  Write("config.json", TinyConfig("vocab_size", "0"));
  EXPECT_THAT(ErrorOf(Checkpoint::Open(folder_ + "/")),
              AllOf(HasSubstr(folder_ + "/config.json"), HasSubstr("vocab_size is 0")));
}

}  // namespace
}  // namespace kvern
