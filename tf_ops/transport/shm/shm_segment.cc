// SPDX-License-Identifier: Apache-2.0
// Shared memory: opened, filled with pages, mapped.
#include "transport/shm/shm_segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>
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

// Empty: the error says enough, such as that there is no /dev/shm.
std::string RemedyFor(int error) {
  if (error == EFBIG) return "; raise 'ulimit -f'";
  if (error != ENOSPC && error != ENOMEM) return "";
  return "; give the container more, as with docker's --shm-size";
}

Result<uint64_t> RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    return Failed("getrandom", errno);
  }
  return number;
}

// The segment's last bytes. They tell it from a stranger's file.
struct Trailer {
  uint64_t nonce;
  uint64_t bytes;  // of the segment
};

size_t FileBytes(size_t bytes) { return bytes + sizeof(Trailer); }

Trailer* TrailerOf(std::byte* data, size_t bytes) {
  return reinterpret_cast<Trailer*>(data + bytes);
}

Result<std::string> RandomName() {
  const Result<uint64_t> number = RandomNumber();
  if (!number.ok()) return number.status();
  char name[32];
  std::snprintf(name, sizeof(name), "/hvd_tf-%016llx",
                static_cast<unsigned long long>(number.value()));
  return std::string(name);
}

Result<std::byte*> Map(int fd, size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap of shared memory", errno);
  return static_cast<std::byte*>(data);
}

// Every signal that arrives makes the kernel give up and free what it has found
// so far. A program with a timer could try for ever. So signals wait.
int Fallocate(int fd, size_t bytes) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);  // it was stopped and goes on
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

// With all of its pages, and its trailer.
Result<std::byte*> FillAndMap(int fd, size_t bytes, uint64_t nonce) {
  const int error = Fallocate(fd, FileBytes(bytes));
  if (error != 0) {
    const Status status =
        Failed(std::to_string(bytes >> 10) + " KiB of /dev/shm", error);
    return ResourceExhausted(status.message() + RemedyFor(error));
  }
  Result<std::byte*> data = Map(fd, FileBytes(bytes));
  if (data.ok()) *TrailerOf(data.value(), bytes) = {nonce, bytes};
  return data;
}

// What Attach needs to know: "place PID FD NONCE" of a file without a name, or
// "file NAME NONCE".
std::string FileText(const std::string& name, uint64_t nonce) {
  return "file " + name + " " + std::to_string(nonce);
}
std::string PlaceText(int fd, uint64_t nonce) {
  return "place " + std::to_string(getpid()) + " " + std::to_string(fd) + " " +
         std::to_string(nonce);
}

struct Place {
  std::string path;
  uint64_t nonce = 0;
};

Result<Place> ParsePlace(const std::string& text) {
  std::istringstream in(text);
  std::string kind;
  Place place;
  in >> kind;
  if (kind == "place") {
    long pid = 0;
    int fd = 0;
    in >> pid >> fd >> place.nonce;
    place.path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  } else {
    std::string name;
    in >> name >> place.nonce;
    place.path = "/dev/shm" + name;
  }
  if (in.fail()) return Internal("\"" + text + "\" is no shared memory.");
  return place;
}

// What is at the path may be another process's: ranks may have process numbers
// of their own. So it is looked at before it is opened. Opening alone can do
// something to a device or a pipe.
Result<int> Open(const Place& place, size_t bytes) {
  const bool is_link = place.path.compare(0, 6, "/proc/") == 0;
  const Descriptor found(open(place.path.c_str(),
                              O_PATH | O_CLOEXEC | (is_link ? 0 : O_NOFOLLOW)));
  if (found.get() < 0) return Failed("open of " + place.path, errno);
  struct stat facts;
  if (fstat(found.get(), &facts) != 0) return Failed("fstat", errno);
  if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() ||
      facts.st_size != static_cast<off_t>(FileBytes(bytes))) {
    return Internal(
        "the shared memory of the host's first rank has another owner or "
        "another size.");
  }
  const std::string itself = "/proc/self/fd/" + std::to_string(found.get());
  const int file = open(itself.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return Failed("open of " + place.path, errno);
  return file;
}

}  // namespace

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(size_t bytes) {
  const Result<uint64_t> nonce = RandomNumber();
  if (!nonce.ok()) return nonce.status();
  Descriptor file(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() < 0) return Failed("open of /dev/shm", errno);
  Result<std::byte*> data = FillAndMap(file.get(), bytes, nonce.value());
  if (!data.ok()) return data.status();
  std::shared_ptr<ShmSegment> segment(new ShmSegment(
      PlaceText(file.get(), nonce.value()), data.value(), bytes));
  segment->fd_ = file.Release();
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::CreateNamed(size_t bytes) {
  const Result<uint64_t> nonce = RandomNumber();
  if (!nonce.ok()) return nonce.status();
  const Result<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  const Descriptor file(shm_open(name.value().c_str(),
                                 O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0600));
  if (file.get() < 0) return Failed("shm_open", errno);
  Result<std::byte*> data = FillAndMap(file.get(), bytes, nonce.value());
  if (!data.ok()) {
    shm_unlink(name.value().c_str());
    return data.status();
  }
  std::shared_ptr<ShmSegment> segment(new ShmSegment(
      FileText(name.value(), nonce.value()), data.value(), bytes));
  segment->linked_as_ = name.value();
  return segment;
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Attach(const std::string& name,
                                                       size_t bytes) {
  const Result<Place> place = ParsePlace(name);
  if (!place.ok()) return place.status();
  const Result<int> opened = Open(place.value(), bytes);
  if (!opened.ok()) return opened.status();
  const Descriptor file(opened.value());
  const Result<std::byte*> data = Map(file.get(), FileBytes(bytes));
  if (!data.ok()) return data.status();
  std::shared_ptr<ShmSegment> segment(
      new ShmSegment(name, data.value(), bytes));
  const Trailer& trailer = *TrailerOf(data.value(), bytes);
  if (trailer.nonce != place.value().nonce || trailer.bytes != bytes) {
    return Internal("the file at " + place.value().path +
                    " is not the shared memory of the host's first rank.");
  }
  return segment;
}

void ShmSegment::Unlink() {
  const std::string name = std::exchange(linked_as_, "");
  if (!name.empty()) shm_unlink(name.c_str());
  const Descriptor file(std::exchange(fd_, -1));
}

ShmSegment::~ShmSegment() {
  Unlink();
  munmap(data_, FileBytes(bytes_));
}

}  // namespace hvd
