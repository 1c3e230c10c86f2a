// SPDX-License-Identifier: Apache-2.0
// What the text of a timeline has: lines, their numbers, and its end.
#ifndef HVD_TESTS_CORE_TRACE_TEXT_H_
#define HVD_TESTS_CORE_TRACE_TEXT_H_

#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "harness.h"

namespace hvd {

inline size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// Lines that have all of these parts.
inline std::vector<std::string> LinesWith(
    const std::string& text, const std::vector<std::string>& parts) {
  std::vector<std::string> found;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool has_all = true;
    for (const std::string& part : parts) {
      has_all &= line.find(part) != std::string::npos;
    }
    if (has_all) found.push_back(line);
  }
  return found;
}

inline double NumberAfter(const std::string& line, const std::string& key) {
  const size_t at = line.find("\"" + key + "\":");
  EXPECT_TRUE(at != std::string::npos);
  return std::atof(line.c_str() + at + key.size() + 3);
}

// What all lines of the tensor `name` of a rank have. Empty: it has none.
inline std::vector<std::string> RowOf(const std::string& text, int rank,
                                      const std::string& name) {
  const std::string pid = "\"pid\":" + std::to_string(rank) + ",";
  const auto row =
      LinesWith(text, {"thread_name", pid, "{\"name\":\"" + name + "\"}"});
  EXPECT_EQ(row.size(), 1u);
  if (row.empty()) return {};
  const int tid = static_cast<int>(NumberAfter(row[0], "tid"));
  return {pid, "\"tid\":" + std::to_string(tid) + ","};
}

// The timeline was ended: its text is a whole JSON array.
inline void ExpectComplete(const std::string& text) {
  const std::string end = "}}\n]\n";
  ASSERT_TRUE(text.size() >= end.size());
  EXPECT_EQ(text.substr(text.size() - end.size()), end);
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TRACE_TEXT_H_
