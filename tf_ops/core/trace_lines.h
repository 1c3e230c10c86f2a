// SPDX-License-Identifier: Apache-2.0
// TraceLines: the lines of a Chrome trace.
#ifndef HVD_CORE_TRACE_LINES_H_
#define HVD_CORE_TRACE_LINES_H_

#include <cstdint>
#include <string>

namespace hvd {

// Objects of a Chrome trace, one in each line, and a comma behind each.
// docs/timeline.md has the names and arguments.
class TraceLines {
 public:
  // Times are of the trace's own clock. `arguments` is the inside of an object,
  // or empty.
  void Complete(const std::string& name, int pid, int tid, int64_t begin_ns,
                int64_t end_ns, const std::string& arguments);
  void Begin(const std::string& name, int pid, int tid, int64_t begin_ns,
             const std::string& arguments);
  void End(int pid, int tid, int64_t end_ns, const std::string& arguments);
  void Instant(const std::string& name, int pid, int tid, int64_t time_ns);
  void Metadata(const std::string& name, int pid, int tid,
                const std::string& arguments);

  std::string Take();

 private:
  std::string text_;
};

// A time in nanoseconds, in microseconds: what traces have.
[[nodiscard]] std::string Micros(int64_t time_ns);
// "name":value
[[nodiscard]] std::string JsonMember(const char* name, int64_t value);
// `text` as a JSON string, with its quotes. What is not UTF-8 becomes '?'.
[[nodiscard]] std::string JsonText(const std::string& text);

}  // namespace hvd

#endif  // HVD_CORE_TRACE_LINES_H_
