// SPDX-License-Identifier: Apache-2.0
// Quoted: a name as texts for people show it.
#ifndef HVD_CORE_QUOTED_H_
#define HVD_CORE_QUOTED_H_

#include <string>

namespace hvd {

// The name between single quotes. Users choose names freely, but a text must
// stay one that can be read, and TensorFlow passes it on as a C string. So
// control characters are written as "\\x00", and the middle of a long name as
// "...".
[[nodiscard]] std::string Quoted(const std::string& name);

}  // namespace hvd

#endif  // HVD_CORE_QUOTED_H_
