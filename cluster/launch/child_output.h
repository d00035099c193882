// What a child says on its pipe: split into lines, with the first error among them kept.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/time.h"
#include "cluster/launch/child_process.h"

namespace kvern {

// A child may print without end; what is kept of one line is bounded.
inline constexpr size_t kMaxOutputLine = 8192;

// How long a child's last words are held back: whoever tells why it ended says them himself.
inline constexpr Duration kLastWordsHeld = kSecond;
inline constexpr size_t kMaxLastWords = 8;  // lines

class ChildOutput {
 public:
  using LineSink = std::function<void(std::string_view line)>;

  // Reads until the pipe is empty and passes on each whole line, without its newline. False once
  // the other end is closed and everything was read; a last line without a newline is passed on
  // then. From "program: what ..." on, which is what our programs say when they end, lines are held
  // back for kLastWordsHeld, unless they are too many.
  bool Drain(int fd, Time now, const LineSink& sink);

  // The same for bytes at hand.
  void Append(std::string_view bytes, Time now, const LineSink& sink);

  // Passes on what is held back: all of it, but for the lines that say no more than one of `told`,
  // with or without `name` and a colon before it.
  void LetGo(const std::string& name, const std::vector<std::string>& told, const LineSink& sink);
  // The same when it was held back for long enough.
  void LetGoOld(Time now, const std::string& name, const std::vector<std::string>& told,
                const LineSink& sink);
  // When LetGoOld will; kTimeMax if nothing is held back.
  Time held_until() const { return held_.empty() ? kTimeMax : held_since_ + kLastWordsHeld; }

  // The first line that reports an error, without the program's name; failing that, the last line.
  // Empty if the child said nothing. For people: no program parses it.
  const std::string& FirstError() const { return first_error_.empty() ? last_line_ : first_error_; }
  // When the first error came; kTimeMax if none did.
  Time first_error_time() const { return first_error_time_; }

 private:
  void Finish(Time now, const LineSink& sink);

  std::string partial_;
  std::string first_error_;
  std::string last_line_;
  Time first_error_time_ = kTimeMax;
  std::vector<std::string> held_;
  Time held_since_ = 0;
};

// The error's text if `line` reports one ("program: what …", a log line of level error as text or
// JSON, a failed check or a sanitizer's report), else empty.
std::string ErrorText(std::string_view line);

// Why a child ended, in one line: its first error; for one killed by a signal, the signal as well.
std::string DeathReason(const ExitStatus& exit, const ChildOutput& output);

}  // namespace kvern
