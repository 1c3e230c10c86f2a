// SPDX-License-Identifier: Apache-2.0
// OutputFile: a file that one job at a time writes.
#ifndef HVD_CORE_OUTPUT_FILE_H_
#define HVD_CORE_OUTPUT_FILE_H_

#include <string>
#include <utility>

#include "core/status.h"

namespace hvd {

// The file is locked while it is open, where its file system can do that. So
// two jobs with the same path do not write into each other's lines. The lock is
// this process' own: neither a process that it forks nor a program that it
// starts keeps it. It ends early if this process closes the file elsewhere too.
//
// One thread at a time.
class OutputFile {
 public:
  enum class Links { kFollowed, kRefused };

  // Creates the file, or empties it. `name` is what the user calls it by in the
  // error, such as HVD_TIMELINE. Who refuses a symbolic link fears that others
  // have put it there.
  [[nodiscard]] static Result<OutputFile> Open(const std::string& name,
                                               const std::string& path,
                                               Links links);
  // Whether Open would succeed, with its error if not. Creates the file, but
  // does not empty it. If this process has it open, it is locked no more.
  [[nodiscard]] static Status Check(const std::string& name,
                                    const std::string& path, Links links);
  // No file: what is written is lost.
  OutputFile() = default;
  ~OutputFile() { Close(); }
  OutputFile(OutputFile&& other) noexcept
      : file_(std::exchange(other.file_, -1)) {}
  OutputFile& operator=(OutputFile&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  // Not Ok: why it could not be written. Then it is closed.
  [[nodiscard]] Status Write(const std::string& text);
  void Close();

 private:
  explicit OutputFile(int file) : file_(file) {}

  static Result<OutputFile> Open(const std::string& name,
                                 const std::string& path, Links links,
                                 bool empties);

  int file_ = -1;
};

}  // namespace hvd

#endif  // HVD_CORE_OUTPUT_FILE_H_
