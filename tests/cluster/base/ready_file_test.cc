#include "cluster/base/ready_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

// Above the largest pid there can be: of a process that is gone.
constexpr char kStale[] =
    "{\"endpoint\":\"tcp://127.0.0.1:1\",\"status\":\"127.0.0.1:2\",\"pid\":4194305}\n";

class ReadyFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "kvern_ready_file_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    path_ = folder_ + "/ready";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Put(const std::string& text) const { std::ofstream(path_) << text; }
  std::string Get() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  // None of the calls changes what is at the path.
  void ExpectRefused(const std::string& why) const {
    ReadyFile file(path_);
    for (const absl::Status& status : {file.Check(), file.Clear(), file.Write("e", "s")}) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("--ready-file: '" + path_ + "' " + why + ", allowed: "));
    }
    EXPECT_EQ(Entries(), 1u);
  }

  std::string folder_;
  std::string path_;
};

TEST_F(ReadyFileTest, AppearsWholeAndLeavesAtTheEnd) {
  {
    ReadyFile file(path_);
    EXPECT_TRUE(file.Check().ok());
    EXPECT_TRUE(file.Clear().ok());
    EXPECT_EQ(Entries(), 0u);
    EXPECT_TRUE(file.Write("tcp://127.0.0.1:7", "127.0.0.1:8").ok());
    EXPECT_EQ(Get(), ReadyLine("tcp://127.0.0.1:7", "127.0.0.1:8"));
    EXPECT_EQ(Entries(), 1u);
  }
  EXPECT_EQ(Entries(), 0u);
}

TEST_F(ReadyFileTest, OneThatAServiceLeftOrAnEmptyOneIsClearedOnlyWhenTold) {
  for (const char* text : {kStale, ""}) {
    Put(text);
    ReadyFile file(path_);
    EXPECT_TRUE(file.Check().ok());
    EXPECT_EQ(Get(), text);
    EXPECT_TRUE(file.Clear().ok());
    EXPECT_EQ(Entries(), 0u);
  }
}

TEST_F(ReadyFileTest, OtherFilesAreRefusedAndStay) {
  for (const char* text : {"precious\n", "{}", "[1]", "{\"pid\":4194305}",
                           "{\"endpoint\":\"e\",\"status\":\"s\",\"pid\":\"7\"}"}) {
    Put(text);
    ExpectRefused("is not a ready file");
    EXPECT_EQ(Get(), text);
  }
}

TEST_F(ReadyFileTest, WhatIsNoRegularFileIsRefusedUnopened) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused("is not a regular file");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  ExpectRefused("is a folder");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("nowhere", path_);
  ExpectRefused("is a symbolic link");
}

TEST_F(ReadyFileTest, OneThatWasReplacedMeanwhileIsNotRemoved) {
  for (const char* text : {kStale, "precious\n"}) {
    {
      ReadyFile file(path_);
      ASSERT_TRUE(file.Write("e", "s").ok());
      Put(text);
    }
    EXPECT_EQ(Get(), text);
    std::filesystem::remove(path_);
  }
}

TEST_F(ReadyFileTest, WhatLiesBesideStays) {
  std::string beside = path_ + "." + std::to_string(getpid()) + ".0";
  std::ofstream(beside) << "precious";
  ReadyFile file(path_);
  ASSERT_TRUE(file.Write("e", "s").ok());
  EXPECT_EQ(Get(), ReadyLine("e", "s"));
  EXPECT_EQ(std::filesystem::file_size(beside), 8u);
}

TEST_F(ReadyFileTest, NoPathIsNoFile) {
  ReadyFile file("");
  EXPECT_TRUE(file.Check().ok() && file.Clear().ok() && file.Write("e", "s").ok());
  EXPECT_EQ(Entries(), 0u);
}

}  // namespace
}  // namespace kvern
