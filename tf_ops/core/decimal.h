// SPDX-License-Identifier: Apache-2.0
// Numbers as text with a decimal point, under any locale.
#ifndef HVD_CORE_DECIMAL_H_
#define HVD_CORE_DECIMAL_H_

#include <iomanip>
#include <locale>
#include <optional>
#include <sstream>
#include <string>

namespace hvd {

// The number, if the whole text is one. Else nothing. strtod would read "0.5"
// as 0 under a locale with decimal commas.
[[nodiscard]] inline std::optional<double> ParseDecimal(
    const std::string& text) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  double number = 0;
  if (!(stream >> std::noskipws >> number)) return std::nullopt;
  if (stream.peek() != std::istringstream::traits_type::eof()) {
    return std::nullopt;
  }
  return number;
}

// The number with so many digits after the point.
[[nodiscard]] inline std::string DecimalText(double number, int digits) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  stream << std::fixed << std::setprecision(digits) << number;
  return stream.str();
}

}  // namespace hvd

#endif  // HVD_CORE_DECIMAL_H_
