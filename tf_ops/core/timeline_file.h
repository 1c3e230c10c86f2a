// SPDX-License-Identifier: Apache-2.0
// TimelineFile: the file of a timeline, and the thread that writes it.
#ifndef HVD_CORE_TIMELINE_FILE_H_
#define HVD_CORE_TIMELINE_FILE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "core/backend.h"
#include "core/clock_offsets.h"
#include "core/status.h"
#include "core/timeline_writer.h"

namespace hvd {

// Exists on rank 0. What has been added is in the file a moment later, so that
// the end of the process loses nothing older. If the disk is slower than the
// ranks, what does not fit into a bounded queue is dropped and counted.
//
// Any thread may call all methods.
class TimelineFile {
 public:
  // Creates the file, or empties it. `name` is what the user calls it by in the
  // error, such as HVD_TIMELINE. A symbolic link is refused: others may have
  // put it there.
  [[nodiscard]] static Result<std::shared_ptr<TimelineFile>> Open(
      const std::string& name, const std::string& path,
      const Topology& topology, int64_t start_ns);
  // Calls Close.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // A TraceChunk's bytes.
  void Add(int rank, std::string chunk);
  void SetClock(int host, const ClockOffset& clock);
  // Writes what has been added, and the end. Later calls do nothing.
  void Close();

 private:
  struct Chunk {
    int rank;
    std::string bytes;
  };
  struct Clock {
    int host;
    ClockOffset offset;
  };
  using Item = std::variant<Chunk, Clock>;

  TimelineFile(int file, std::string path, const Topology& topology,
               int64_t start_ns);
  void Run();
  void Write(const std::string& text);

  const std::string path_;
  // Of the thread.
  int file_;
  TimelineWriter writer_;

  std::mutex mutex_;
  std::condition_variable news_;
  // Guarded by mutex_.
  std::vector<Item> items_;
  size_t item_bytes_ = 0;
  std::map<int, uint64_t> lost_;  // chunks, by rank
  bool closing_ = false;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_FILE_H_
