// SPDX-License-Identifier: Apache-2.0
// Shared memory: the segment that ranks attach, by name or by place.
#include "transport/shm/shm_segment.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>

#include "harness.h"

namespace {
std::atomic<int> interruptions{0};
std::atomic<bool> was_open_to_signals{false};
std::string last_filled;  // its path
}  // namespace

// In place of the C library's: it is interrupted so often.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (sigismember(&blocked, SIGALRM) == 0) was_open_to_signals = true;
  char path[64] = "";
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  (void)!readlink(link.c_str(), path, sizeof(path) - 1);
  last_filled = path;
  if (interruptions > 0) {
    --interruptions;
    return EINTR;
  }
  return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace hvd {
namespace {

// The path of a segment that has a name there.
std::string PathOf(const ShmSegment& segment) {
  const std::string& text = segment.name();
  const size_t begin = text.find('/');
  return "/dev/shm" + text.substr(begin, text.find(' ', begin) - begin);
}

bool Exists(const std::string& path) {
  struct stat facts;
  return stat(path.c_str(), &facts) == 0;
}

TEST(a_segment_is_private_and_shared_by_its_name) {
  auto mine = ShmSegment::CreateNamed(8192);
  ASSERT_TRUE(mine.ok());
  struct stat facts;
  ASSERT_TRUE(stat(PathOf(*mine.value()).c_str(), &facts) == 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_TRUE(facts.st_blocks * 512 >= 8192);  // its pages are there
  auto again = ShmSegment::Attach(mine.value()->name(), 8192);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(mine.value()->data() != again.value()->data());
  mine.value()->data()[8191] = std::byte{42};
  EXPECT_TRUE(again.value()->data()[8191] == std::byte{42});
  EXPECT_TRUE(again.value()->data()[0] == std::byte{0});
}

TEST(a_segment_is_gone_with_its_name) {
  auto mine = ShmSegment::CreateNamed(4096);
  ASSERT_TRUE(mine.ok());
  const std::string path = PathOf(*mine.value());
  auto again = ShmSegment::Attach(mine.value()->name(), 4096);
  again.value().reset();
  EXPECT_TRUE(Exists(path));  // is not theirs to take away
  mine.value()->Unlink();
  EXPECT_FALSE(Exists(path));
  EXPECT_FALSE(ShmSegment::Attach(mine.value()->name(), 4096).ok());
  auto other = ShmSegment::CreateNamed(4096);
  const std::string second = PathOf(*other.value());
  EXPECT_TRUE(second != path);
  other.value().reset();
  EXPECT_FALSE(Exists(second));
}

TEST(a_segment_without_a_name_is_shared_by_its_place_and_leaves_nothing) {
  auto mine = ShmSegment::Create(8192);
  ASSERT_TRUE(mine.ok());
  const std::string name = mine.value()->name();
  int pid = 0, fd = -1;
  ASSERT_EQ(std::sscanf(name.c_str(), "place %d %d", &pid, &fd), 2);
  struct stat facts;
  ASSERT_TRUE(fstat(fd, &facts) == 0);
  EXPECT_EQ(facts.st_nlink, 0u);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_TRUE(facts.st_blocks * 512 >= 8192);
  auto again = ShmSegment::Attach(name, 8192);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(mine.value()->data() != again.value()->data());
  mine.value()->data()[8191] = std::byte{42};
  EXPECT_TRUE(again.value()->data()[8191] == std::byte{42});
  EXPECT_TRUE(again.value()->data()[0] == std::byte{0});
  again.value()->Unlink();
  EXPECT_TRUE(ShmSegment::Attach(name, 8192).ok());  // is not theirs to close
  mine.value()->Unlink();
  EXPECT_FALSE(ShmSegment::Attach(name, 8192).ok());
  again.value()->data()[0] = std::byte{7};
  EXPECT_TRUE(mine.value()->data()[0] == std::byte{7});
}

TEST(a_segment_of_another_size_is_refused) {
  auto mine = ShmSegment::Create(8192);
  EXPECT_EQ(ShmSegment::Attach(mine.value()->name(), 4096).status().code(),
            StatusCode::kInternal);
}

// Where ranks have process numbers of their own, a place may be a stranger's.
TEST(a_strangers_file_is_refused) {
  for (auto* create : {ShmSegment::Create, ShmSegment::CreateNamed}) {
    auto mine = create(8192);
    ASSERT_TRUE(mine.ok());
    std::string name = mine.value()->name();
    EXPECT_TRUE(ShmSegment::Attach(name, 8192).ok());
    char& last = name.back();
    last = last == '1' ? '2' : '1';  // all as it should be but the nonce
    EXPECT_EQ(ShmSegment::Attach(name, 8192).status().code(),
              StatusCode::kInternal);
  }
  for (const char* text : {"", "place", "place 1", "place x 3 4", "file /a"}) {
    EXPECT_EQ(ShmSegment::Attach(text, 8192).status().code(),
              StatusCode::kInternal);
  }
}

// Opened for writing, a pipe would have another writer, and no reader would see
// its end.
TEST(what_is_no_file_is_not_even_opened) {
  const std::string path = "/tmp/hvd_tf-shm_test-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  unlink(path.c_str());
  const std::string place =
      "place " + std::to_string(getpid()) + " " + std::to_string(reader) + " 7";
  EXPECT_EQ(ShmSegment::Attach(place, 8192).status().code(),
            StatusCode::kInternal);
  pollfd events = {reader, POLLIN, 0};
  EXPECT_EQ(poll(&events, 1, 0), 0);  // it hangs up once a writer has gone
  close(reader);
}

// Not every kernel does that to a signal's receiver.
TEST(an_interruption_does_not_stop_a_segment_from_being_filled) {
  interruptions = 3;
  was_open_to_signals = false;
  EXPECT_EQ(ShmSegment::Create(8192).status().message(), "");
  EXPECT_EQ(interruptions.load(), 0);
  // A timer would interrupt it each time.
  EXPECT_FALSE(was_open_to_signals.load());
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGALRM), 0);
}

TEST(a_segment_that_does_not_fit_is_an_error_now) {
  const Status status = ShmSegment::Create(size_t{1} << 50).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("/dev/shm"), std::string::npos);
  // Nor does it leave its name.
  EXPECT_EQ(ShmSegment::CreateNamed(size_t{1} << 50).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(last_filled.find("/dev/shm/hvd_tf-"), 0u);
  EXPECT_FALSE(Exists(last_filled));
}

// Each reason has another remedy. A larger /dev/shm helps against one of them.
TEST(what_stands_in_the_way_of_a_segment_is_told_with_its_remedy) {
  const std::string full =
      ShmSegment::Create(size_t{1} << 50).status().message();
  EXPECT_NE(full.find("docker's --shm-size"), std::string::npos);

  auto* const before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit low = {4096, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string limited = ShmSegment::Create(1 << 20).status().message();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, before);
  EXPECT_EQ(limited, "1024 KiB of /dev/shm: File too large; raise 'ulimit -f'");
}

}  // namespace
}  // namespace hvd
