// SPDX-License-Identifier: Apache-2.0
// Opens, locks and empties a file, and writes to it.
#include "core/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hvd {
namespace {

Status CannotWrite(const std::string& name, const std::string& path,
                   const std::string& why_and_remedy) {
  return InvalidArgument(name + "='" + path +
                         "' cannot be written on rank 0 (" + why_and_remedy);
}

bool IsRegular(int file) {
  struct stat facts{};
  return fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
}

// flock's locks would be shared with children.
bool IsLockedByOther(int file) {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  // Some network file systems have no locks.
  return fcntl(file, F_SETLK, &whole) != 0 &&
         (errno == EAGAIN || errno == EACCES);
}

}  // namespace

Result<OutputFile> OutputFile::Open(const std::string& name,
                                    const std::string& path, Links links) {
  return Open(name, path, links, true);
}

Status OutputFile::Check(const std::string& name, const std::string& path,
                         Links links) {
  return Open(name, path, links, false).status();
}

Result<OutputFile> OutputFile::Open(const std::string& name,
                                    const std::string& path, Links links,
                                    bool empties) {
  constexpr mode_t kMode = 0644;
  const int no_link = links == Links::kRefused ? O_NOFOLLOW : 0;
  // The file is emptied below, once it is known that nobody else writes it.
  OutputFile file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | no_link, kMode));
  int error = file.file_ < 0 ? errno : 0;
  // Others, such as /dev/null, may have several writers.
  if (error == 0 && IsRegular(file.file_)) {
    if (IsLockedByOther(file.file_)) {
      return CannotWrite(name, path,
                         "another job writes it, or what it has left behind): "
                         "name another file, or end that job.");
    }
    if (empties && ftruncate(file.file_, 0) != 0) error = errno;
  }
  if (error == 0) return file;
  const std::string why = error == ELOOP && no_link != 0
                              ? "it is a symbolic link"
                              : std::strerror(error);
  return CannotWrite(
      name, path,
      why + "): name a file in a directory that exists and may be written to.");
}

Status OutputFile::Write(const std::string& text) {
  size_t done = 0;
  while (file_ >= 0 && done < text.size()) {
    const ssize_t bytes = write(file_, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      const std::string why = std::strerror(errno);
      Close();
      return ResourceExhausted(why);
    }
    done += static_cast<size_t>(bytes);
  }
  return Status::Ok();
}

void OutputFile::Close() {
  if (file_ >= 0) close(std::exchange(file_, -1));
}

}  // namespace hvd
