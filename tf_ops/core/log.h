// SPDX-License-Identifier: Apache-2.0
// One line to stderr with time, level and rank. Any thread.
#ifndef HVD_CORE_LOG_H_
#define HVD_CORE_LOG_H_

#include <functional>
#include <string>

namespace hvd {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Lines below `level` are dropped. Every line has the rank, unless it is -1.
void ConfigureLog(LogLevel level, int rank);

// Tests set a sink, which gets the lines instead of stderr. Null removes it.
using LogSink = std::function<void(LogLevel, const std::string&)>;
void SetLogSink(LogSink sink);

void Log(LogLevel level, const std::string& message);

}  // namespace hvd

#endif  // HVD_CORE_LOG_H_
