// SPDX-License-Identifier: Apache-2.0
// Writes events of a Chrome trace as JSON.
#include "core/trace_lines.h"

#include <algorithm>
#include <charconv>
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

void AppendNumber(int64_t value, std::string* text) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  text->append(digits, end);
}

void AppendMicros(int64_t time_ns, std::string* text) {
  const bool is_negative = time_ns < 0;
  const uint64_t ns = is_negative ? 0 - static_cast<uint64_t>(time_ns)
                                  : static_cast<uint64_t>(time_ns);
  if (is_negative) *text += '-';
  AppendNumber(static_cast<int64_t>(ns / 1000), text);
  const auto rest = static_cast<int>(ns % 1000);
  for (const int digit : {'.' - '0', rest / 100, rest / 10 % 10, rest % 10}) {
    *text += static_cast<char>('0' + digit);
  }
}

std::string JsonMember(const char* name, int64_t value) {
  std::string text = "\"";
  text += name;
  text += "\":";
  AppendNumber(value, &text);
  return text;
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

void TraceLines::Head(std::string_view kind, std::string_view name, int pid,
                      int tid) {
  text_ += "{\"ph\":\"";
  text_ += kind;
  if (!name.empty()) {
    text_ += "\",\"name\":\"";
    text_ += name;
  }
  text_ += "\",\"pid\":";
  AppendNumber(pid, &text_);
  text_ += ",\"tid\":";
  AppendNumber(tid, &text_);
}

void TraceLines::Time(std::string_view key, int64_t time_ns) {
  text_ += key;
  AppendMicros(time_ns, &text_);
}

void TraceLines::Tail(std::string_view arguments, std::string_view more) {
  text_ += ",\"args\":{";
  text_ += arguments;
  if (!arguments.empty() && !more.empty()) text_ += ',';
  text_ += more;
  text_ += "}},\n";
}

void TraceLines::Complete(std::string_view name, int pid, int tid,
                          int64_t begin_ns, int64_t end_ns,
                          std::string_view arguments, std::string_view more) {
  Head("X", name, pid, tid);
  Time(",\"ts\":", begin_ns);
  Time(",\"dur\":", std::max<int64_t>(end_ns - begin_ns, 0));
  Tail(arguments, more);
}

void TraceLines::Begin(std::string_view name, int pid, int tid,
                       int64_t begin_ns, std::string_view arguments) {
  Head("B", name, pid, tid);
  Time(",\"ts\":", begin_ns);
  Tail(arguments, {});
}

void TraceLines::End(int pid, int tid, int64_t end_ns,
                     std::string_view arguments) {
  Head("E", {}, pid, tid);
  Time(",\"ts\":", end_ns);
  Tail(arguments, {});
}

void TraceLines::Instant(std::string_view name, int pid, int tid,
                         int64_t time_ns) {
  Head("i", name, pid, tid);
  Time(",\"s\":\"p\",\"ts\":", time_ns);
  Tail({}, {});
}

void TraceLines::Metadata(std::string_view name, int pid, int tid,
                          std::string_view arguments) {
  Head("M", name, pid, tid);
  Tail(arguments, {});
}

std::string TraceLines::Take() { return std::exchange(text_, {}); }

}  // namespace hvd
