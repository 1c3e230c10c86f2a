// SPDX-License-Identifier: Apache-2.0
// Makes a name fit for a text.
#include "core/quoted.h"

#include <cstddef>

namespace hvd {
namespace {

// How many bytes of each end of a long name are shown. Similar names differ at
// their ends.
constexpr size_t kShownBytes = 150;
constexpr char kLeftOut[] = "...";

// Whether the byte continues a character of UTF-8.
bool Continues(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

void Append(const std::string& name, size_t begin, size_t end,
            std::string* text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = begin; i < end; ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c >= 0x20 && c != 0x7f) {
      *text += name[i];
    } else {
      *text += "\\x";
      *text += kDigits[c / 16];
      *text += kDigits[c % 16];
    }
  }
}

}  // namespace

std::string Quoted(const std::string& name) {
  std::string text = "'";
  if (name.size() <= 2 * kShownBytes) {
    Append(name, 0, name.size(), &text);
    return text + "'";
  }
  size_t end = kShownBytes;
  while (end > 0 && Continues(name[end])) --end;
  size_t begin = name.size() - kShownBytes;
  while (begin < name.size() && Continues(name[begin])) ++begin;
  Append(name, 0, end, &text);
  text += kLeftOut;
  Append(name, begin, name.size(), &text);
  return text + "'";
}

}  // namespace hvd
