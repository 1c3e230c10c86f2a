// SPDX-License-Identifier: Apache-2.0
// Writes events of a Chrome trace as JSON.
#include "core/trace_lines.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace hvd {
namespace {

// The length in bytes of the UTF-8 character at `at`. 0: it is none.
size_t CharacterLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(at);
  const size_t length = first < 0x80                    ? 1
                        : first >= 0xc2 && first < 0xe0 ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  // Too long forms, surrogates, and what is past the last character.
  const unsigned second = byte(at + 1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string Micros(int64_t time_ns) {
  const bool is_negative = time_ns < 0;
  const uint64_t ns = is_negative ? 0 - static_cast<uint64_t>(time_ns)
                                  : static_cast<uint64_t>(time_ns);
  const std::string rest = std::to_string(1000 + ns % 1000);  // "1" and digits
  std::string text = is_negative ? "-" : "";
  text += std::to_string(ns / 1000);
  text += '.';
  text.append(rest, 1, 3);
  return text;
}

std::string JsonMember(const char* name, int64_t value) {
  return std::string("\"") + name + "\":" + std::to_string(value);
}

std::string JsonText(const std::string& text) {
  std::string json = "\"";
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t length = CharacterLength(text, at);
    if (byte == '"' || byte == '\\') {
      json += {'\\', text[at]};
    } else if (byte < 0x20 || byte == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", byte);
      json += code;
    } else if (length == 0) {
      json += '?';
    } else {
      json.append(text, at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return json + "\"";
}

void TraceLines::Complete(const std::string& name, int pid, int tid,
                          int64_t begin_ns, int64_t end_ns,
                          const std::string& arguments) {
  text_ += "{\"ph\":\"X\",\"name\":\"" + name +
           "\",\"pid\":" + std::to_string(pid) +
           ",\"tid\":" + std::to_string(tid) + ",\"ts\":" + Micros(begin_ns) +
           ",\"dur\":" + Micros(std::max<int64_t>(end_ns - begin_ns, 0));
  if (!arguments.empty()) text_ += ",\"args\":{" + arguments + "}";
  text_ += "},\n";
}

void TraceLines::Begin(const std::string& name, int pid, int tid,
                       int64_t begin_ns, const std::string& arguments) {
  text_ += "{\"ph\":\"B\",\"name\":\"" + name +
           "\",\"pid\":" + std::to_string(pid) +
           ",\"tid\":" + std::to_string(tid) + ",\"ts\":" + Micros(begin_ns) +
           ",\"args\":{" + arguments + "}},\n";
}

void TraceLines::End(int pid, int tid, int64_t end_ns,
                     const std::string& arguments) {
  text_ += "{\"ph\":\"E\",\"pid\":" + std::to_string(pid) +
           ",\"tid\":" + std::to_string(tid) + ",\"ts\":" + Micros(end_ns) +
           ",\"args\":{" + arguments + "}},\n";
}

void TraceLines::Instant(const std::string& name, int pid, int tid,
                         int64_t time_ns) {
  text_ += "{\"ph\":\"i\",\"s\":\"p\",\"name\":\"" + name +
           "\",\"pid\":" + std::to_string(pid) +
           ",\"tid\":" + std::to_string(tid) + ",\"ts\":" + Micros(time_ns) +
           "},\n";
}

void TraceLines::Metadata(const std::string& name, int pid, int tid,
                          const std::string& arguments) {
  text_ +=
      "{\"ph\":\"M\",\"name\":\"" + name + "\",\"pid\":" + std::to_string(pid) +
      ",\"tid\":" + std::to_string(tid) + ",\"args\":{" + arguments + "}},\n";
}

std::string TraceLines::Take() { return std::exchange(text_, {}); }

}  // namespace hvd
