// SPDX-License-Identifier: Apache-2.0
// FakeGpu: a GPU that is made up: its memory, and streams of work.
//
// fake_cuda.h makes CUDA's driver of it. So lanes run on it as on a GPU.
#ifndef HVD_TESTS_FAKES_FAKE_GPU_H_
#define HVD_TESTS_FAKES_FAKE_GPU_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hvd {

// Its memory has addresses that fault when the host touches them. A copy of
// CUDA's that touches anything but memory of the GPU and pinned memory fails
// its stream, and so does all that follows in it. Any thread.
class FakeGpu {
 public:
  // What a stream has come to.
  struct Point {
    bool is_reached = false;
    bool has_failed = false;
  };
  using PointPtr = std::shared_ptr<Point>;
  // A piece of work. It says whether it is done, and is asked again if not.
  using Work = std::function<bool()>;

  // Work in order. It belongs to its GPU.
  class Stream {
   public:
    explicit Stream(FakeGpu* of) : gpu(of) {}
    FakeGpu* const gpu;

   private:
    friend class FakeGpu;
    bool has_failed_ = false;
    bool is_deleted_ = false;
    std::deque<Work> queue_;
  };

  explicit FakeGpu(size_t bytes = size_t{1} << 30);
  // Work that is left is not done.
  ~FakeGpu();

  // Another one has another, unless it is given the same.
  uint64_t identity() const { return identity_; }
  void set_identity(uint64_t identity) { identity_ = identity; }

  // --- Memory ---
  // Filled with poison, and not null also for 0 bytes. Null: the GPU is full.
  void* Allocate(size_t bytes);
  void Free(void* device);
  // Pinned. Null: there is none.
  void* AllocatePinned(size_t bytes);
  void FreePinned(void* host);
  // What a program's own stream would do. `device` is memory of the GPU.
  void Write(void* device, const void* host, size_t bytes);
  void Read(void* host, const void* device, size_t bytes) const;

  // --- Streams ---
  Stream* NewStream();
  // It goes when its work is done.
  void Delete(Stream* stream);
  void Queue(Stream* stream, Work work);
  // A copy as CUDA would do it, or one of any memory of the host.
  void QueueCopy(Stream* stream, void* to, const void* from, size_t bytes,
                 bool is_of_any_memory = false);
  PointPtr Record(Stream* stream);
  // Null: for nothing.
  void QueueWait(Stream* stream, PointPtr point);
  // Calls, without a lock, with whether the stream has failed. Called in the
  // end, too, if the GPU does not come to it.
  void QueueCall(Stream* stream, std::function<void(bool has_failed)> call);
  Point Look(const PointPtr& point) const;

  // Each stream works until nothing is left, or waits for what is not ready.
  void Step();
  // From now on a thread does that, whenever there is work.
  void WorkAlone();
  // How long that thread did not look although there was work. Longer than
  // some 0.1 ms where it was not scheduled.
  double longest_pause_s() const;

  // --- Faults ---
  // The next copy of any stream fails.
  void FailNextCopy();
  // No pinned memory is left from now on.
  void RunOutOfPinned();
  // There is no memory for events, but for the next `count`.
  void RunOutOfEvents(int count);
  // Takes one more. False: there is no memory for it.
  bool TakeEvent();
  // Bytes of pinned memory that were asked for, in all.
  size_t pinned_bytes() const;
  // Blocks of it that are not freed.
  size_t pinned_blocks() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  bool IsOnGpu(const void* address) const;
  std::byte* ShadowOf(const void* device) const;
  // Null: CUDA may not use these bytes for a copy.
  void* Reachable(const void* address, size_t bytes) const;
  void Copy(Stream* stream, void* to, const void* from, size_t bytes,
            bool is_of_any_memory);
  // True if anything was done. Work runs without the lock.
  bool DoWork(Stream* stream, Lock* lock);
  bool StepLocked(Lock* lock);

  const size_t bytes_;
  uint64_t identity_ = reinterpret_cast<uintptr_t>(this);
  std::byte* gpu_ = nullptr;     // addresses that fault
  std::byte* shadow_ = nullptr;  // the same memory, for the GPU's own work

  mutable std::mutex mutex_;
  std::condition_variable has_work_;
  bool is_ending_ = false;
  uint64_t queued_ = 0;  // pieces of work, ever
  bool is_idle_ = true;  // the worker waits for work
  Clock::time_point due_ = Clock::time_point::max();  // when it should look
  Clock::duration longest_pause_{};
  std::map<size_t, size_t> used_;          // begin and end on the GPU
  std::map<uintptr_t, uintptr_t> pinned_;  // begin and end
  std::vector<std::unique_ptr<Stream>> streams_;
  bool fails_next_copy_ = false;
  bool has_pinned_ = true;
  int events_left_ = -1;  // negative: as many as are wanted
  size_t pinned_bytes_ = 0;
  std::thread worker_;
};

}  // namespace hvd

#endif  // HVD_TESTS_FAKES_FAKE_GPU_H_
