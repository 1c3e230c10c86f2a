// SPDX-License-Identifier: Apache-2.0
// TraceLines: the lines of a Chrome trace.
#ifndef HVD_CORE_TRACE_LINES_H_
#define HVD_CORE_TRACE_LINES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

// Objects of a Chrome trace, one in each line, and a comma behind each.
// docs/timeline.md has the names and arguments. There may be many thousands a
// second, so nothing but the text is allocated.
class TraceLines {
 public:
  // Times are of the trace's own clock. `arguments` is the inside of an object,
  // or empty.
  void Complete(std::string_view name, int pid, int tid, int64_t begin_ns,
                int64_t end_ns, std::string_view arguments,
                std::string_view more_arguments = {});
  void Begin(std::string_view name, int pid, int tid, int64_t begin_ns,
             std::string_view arguments);
  void End(int pid, int tid, int64_t end_ns, std::string_view arguments);
  void Instant(std::string_view name, int pid, int tid, int64_t time_ns);
  void Metadata(std::string_view name, int pid, int tid,
                std::string_view arguments);

  std::string Take();

 private:
  // The parts of a line, in this order.
  void Head(std::string_view kind, std::string_view name, int pid, int tid);
  void Time(std::string_view key, int64_t time_ns);
  void Tail(std::string_view arguments, std::string_view more);

  std::string text_;
};

void AppendNumber(int64_t value, std::string* text);
// A time in microseconds, which is what traces have.
void AppendMicros(int64_t time_ns, std::string* text);
// "name":value
[[nodiscard]] std::string JsonMember(const char* name, int64_t value);
// `text` as a JSON string, with its quotes. What is not UTF-8 becomes '?'.
[[nodiscard]] std::string JsonText(const std::string& text);

}  // namespace hvd

#endif  // HVD_CORE_TRACE_LINES_H_
