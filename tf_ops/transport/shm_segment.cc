// SPDX-License-Identifier: Apache-2.0
// POSIX shared memory: opened, filled with pages, mapped.
#include "transport/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status Failed(const std::string& what, int error) {
  return ResourceExhausted(what + ": " + std::strerror(error));
}

Result<std::string> RandomName() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    return Failed("getrandom", errno);
  }
  char name[32];
  std::snprintf(name, sizeof(name), "/hvd_tf-%016llx",
                static_cast<unsigned long long>(number));
  return std::string(name);
}

Result<std::byte*> Map(int fd, size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap of shared memory", errno);
  return static_cast<std::byte*>(data);
}

}  // namespace

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(size_t bytes) {
  Result<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  const Descriptor file(shm_open(name.value().c_str(),
                                 O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Failed("shm_open", errno);
  const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  Result<std::byte*> data =
      error == 0
          ? Map(file.get(), bytes)
          : Failed(std::to_string(bytes >> 10) + " KiB of /dev/shm", error);
  if (!data.ok()) {
    shm_unlink(name.value().c_str());
    return data.status();
  }
  return std::shared_ptr<ShmSegment>(
      new ShmSegment(name.value(), data.value(), bytes, true));
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Attach(const std::string& name,
                                                       size_t bytes) {
  const Descriptor file(shm_open(name.c_str(), O_RDWR | O_NOFOLLOW, 0));
  if (file.get() < 0) return Failed("shm_open", errno);
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return Failed("fstat", errno);
  if (facts.st_uid != geteuid() || facts.st_size != static_cast<off_t>(bytes)) {
    return Internal(
        "the shared memory of the host's first rank has another "
        "owner or another size.");
  }
  Result<std::byte*> data = Map(file.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<ShmSegment>(
      new ShmSegment(name, data.value(), bytes, false));
}

void ShmSegment::Unlink() {
  if (std::exchange(is_linked_, false)) shm_unlink(name_.c_str());
}

ShmSegment::~ShmSegment() {
  Unlink();
  munmap(data_, bytes_);
}

}  // namespace hvd
