// SPDX-License-Identifier: Apache-2.0
// Shared memory: opened, filled with pages, mapped.
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
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
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

// With all of its pages.
Result<std::byte*> FillAndMap(int fd, size_t bytes) {
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    return Failed(std::to_string(bytes >> 10) + " KiB of /dev/shm", error);
  }
  return Map(fd, bytes);
}

// Where a file without a name is, for other processes: its process, descriptor
// and inode.
Result<std::string> PlaceOf(int fd) {
  struct stat facts;
  if (fstat(fd, &facts) != 0) return Failed("fstat", errno);
  return std::to_string(getpid()) + " " + std::to_string(fd) + " " +
         std::to_string(facts.st_ino);
}

// `inode`: what is to be found at a place; 0 for a name.
Result<int> Open(const std::string& name, uint64_t* inode) {
  long pid = 0;
  int fd = 0;
  unsigned long long number = 0;
  const bool is_place =
      std::sscanf(name.c_str(), "%ld %d %llu", &pid, &fd, &number) == 3;
  *inode = number;
  const std::string path =
      "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int file = is_place ? open(path.c_str(), O_RDWR | O_CLOEXEC)
                            : shm_open(name.c_str(), O_RDWR | O_NOFOLLOW, 0);
  if (file < 0) return Failed(is_place ? "open of " + path : "shm_open", errno);
  return file;
}

}  // namespace

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(size_t bytes) {
  Descriptor file(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() < 0) return Failed("open of /dev/shm", errno);
  Result<std::byte*> data = FillAndMap(file.get(), bytes);
  if (!data.ok()) return data.status();
  Result<std::string> place = PlaceOf(file.get());
  if (!place.ok()) return place.status();
  std::shared_ptr<ShmSegment> segment(
      new ShmSegment(place.value(), data.value(), bytes));
  segment->fd_ = file.Release();
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::CreateNamed(size_t bytes) {
  Result<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  const Descriptor file(shm_open(name.value().c_str(),
                                 O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Failed("shm_open", errno);
  Result<std::byte*> data = FillAndMap(file.get(), bytes);
  if (!data.ok()) {
    shm_unlink(name.value().c_str());
    return data.status();
  }
  std::shared_ptr<ShmSegment> segment(
      new ShmSegment(name.value(), data.value(), bytes));
  segment->is_linked_ = true;
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Attach(const std::string& name,
                                                       size_t bytes) {
  uint64_t inode = 0;
  Result<int> opened = Open(name, &inode);
  if (!opened.ok()) return opened.status();
  const Descriptor file(opened.value());
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return Failed("fstat", errno);
  if (facts.st_uid != geteuid() || facts.st_size != static_cast<off_t>(bytes) ||
      (inode != 0 && facts.st_ino != inode)) {
    return Internal(
        "the shared memory of the host's first rank has another owner or "
        "another size.");
  }
  Result<std::byte*> data = Map(file.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<ShmSegment>(new ShmSegment(name, data.value(), bytes));
}

void ShmSegment::Unlink() {
  if (std::exchange(is_linked_, false)) shm_unlink(name_.c_str());
  const Descriptor file(std::exchange(fd_, -1));
}

ShmSegment::~ShmSegment() {
  Unlink();
  munmap(data_, bytes_);
}

}  // namespace hvd
