// SPDX-License-Identifier: Apache-2.0
// TimelineFile: the file of a timeline, and the thread that writes it.
#ifndef HVD_CORE_TIMELINE_FILE_H_
#define HVD_CORE_TIMELINE_FILE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/backend.h"
#include "core/clock_offsets.h"
#include "core/status.h"

namespace hvd {

// Exists on rank 0. What has been added is in the file a moment later, so that
// the end of the process loses nothing older. If the disk is slower than the
// ranks, what does not fit into a bounded queue is dropped and counted.
//
// Any thread may call all methods.
class TimelineFile {
 public:
  static constexpr std::chrono::milliseconds kCloseLimit{10000};

  // Creates the file, or empties it. `name` is what the user calls it by in the
  // error, such as HVD_TIMELINE. A symbolic link is refused.
  [[nodiscard]] static Result<std::shared_ptr<TimelineFile>> Open(
      const std::string& name, const std::string& path,
      const Topology& topology, int64_t start_ns);
  // Whether Open would succeed. See OutputFile::Check.
  [[nodiscard]] static Status Check(const std::string& name,
                                    const std::string& path);
  // Calls Close.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  // A TraceChunk's bytes.
  void Add(int rank, std::string chunk);
  void SetClock(int host, const ClockOffset& clock);
  // Writes what has been added, and the end. What is not written within `limit`
  // is dropped and counted. A disk that takes nothing at all is left alone
  // after two seconds more. Later calls do nothing.
  void Close(std::chrono::milliseconds limit = kCloseLimit);
  // Close was called. What comes from now on is not written.
  bool is_closing() const;

 private:
  // What the thread works on. It may outlive the TimelineFile.
  struct Job;

  explicit TimelineFile(std::shared_ptr<Job> job);

  const std::shared_ptr<Job> job_;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_FILE_H_
