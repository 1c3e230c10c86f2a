// SPDX-License-Identifier: Apache-2.0
// Overloaded: one function for each alternative of a variant, for std::visit.
#ifndef HVD_CORE_OVERLOADED_H_
#define HVD_CORE_OVERLOADED_H_

namespace hvd {

// An alternative without a function does not compile.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace hvd

#endif  // HVD_CORE_OVERLOADED_H_
