#include "tools/run/line_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace kvern {
namespace {

// Both ends of a pipe.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(fds_), 0); }
  ~Pipe() {
    close(fds_[0]);
    Close();
  }
  void Write(const std::string& text) {
    ASSERT_EQ(write(fds_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void Close() {
    if (fds_[1] >= 0) close(fds_[1]);
    fds_[1] = -1;
  }
  int fd() const { return fds_[0]; }

 private:
  int fds_[2];
};

std::string Next(LineSource& lines) {
  std::optional<LineSource::Line> line = lines.Next();
  if (!line) return "(none)";
  return line->too_long ? "(too long)" : line->text;
}

TEST(LineSource, CutsLinesAcrossReads) {
  Pipe pipe;
  LineSource lines(pipe.fd(), 100);
  pipe.Write("one\ntwo\nth");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "one");
  EXPECT_EQ(Next(lines), "two");
  EXPECT_EQ(Next(lines), "(none)");
  pipe.Write("ree\n\nlast");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "three");
  EXPECT_EQ(Next(lines), "");
  EXPECT_EQ(Next(lines), "(none)");
  pipe.Close();
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_TRUE(lines.at_end());
  EXPECT_EQ(Next(lines), "last");
  EXPECT_EQ(Next(lines), "(none)");
}

TEST(LineSource, SkipsWhatIsTooLong) {
  Pipe pipe;
  LineSource lines(pipe.fd(), 5);
  pipe.Write("123456\n12345\n123");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "(too long)");
  EXPECT_EQ(Next(lines), "12345");
  EXPECT_EQ(Next(lines), "(none)");
  pipe.Write("4567");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "(none)");
  pipe.Write("8901");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "(none)");
  pipe.Write("\nok\n12345678");
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "(too long)");
  EXPECT_EQ(Next(lines), "ok");
  pipe.Close();
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_EQ(Next(lines), "(too long)");
  EXPECT_EQ(Next(lines), "(none)");
}

TEST(LineSource, NothingIsNoLine) {
  Pipe pipe;
  LineSource lines(pipe.fd(), 5);
  pipe.Close();
  ASSERT_TRUE(lines.Read().ok());
  EXPECT_TRUE(lines.at_end());
  EXPECT_EQ(Next(lines), "(none)");
}

}  // namespace
}  // namespace kvern
