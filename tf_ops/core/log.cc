// SPDX-License-Identifier: Apache-2.0
// Writes whole lines, so that lines of ranks that share a terminal do not mix.
#include "core/log.h"

#include <cstdio>
#include <ctime>
#include <mutex>
#include <utility>

namespace hvd {
namespace {

// The process has one log, as it has one stderr.
struct LogState {
  std::mutex mutex;
  LogLevel level = LogLevel::kWarning;
  int rank = -1;
  LogSink sink;
};

LogState& State() {
  static LogState* state = new LogState;  // outlives every thread
  return *state;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "log";
}

}  // namespace

void ConfigureLog(LogLevel level, int rank) {
  std::lock_guard<std::mutex> lock(State().mutex);
  State().level = level;
  State().rank = rank;
}

void SetLogSink(LogSink sink) {
  std::lock_guard<std::mutex> lock(State().mutex);
  State().sink = std::move(sink);
}

void Log(LogLevel level, const std::string& message) {
  std::lock_guard<std::mutex> lock(State().mutex);
  if (level < State().level) return;
  if (State().sink) {
    State().sink(level, message);
    return;
  }
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char clock[16];
  std::strftime(clock, sizeof(clock), "%H:%M:%S", &local);
  std::string line = std::string(clock) + " hvd_tf " + Name(level);
  if (State().rank >= 0) line += " [rank " + std::to_string(State().rank) + "]";
  line += ": " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace hvd
