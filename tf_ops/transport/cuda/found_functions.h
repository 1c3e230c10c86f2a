// SPDX-License-Identifier: Apache-2.0
// FoundFunctions: fills a table with the functions of a library, by name.
#ifndef HVD_TRANSPORT_CUDA_FOUND_FUNCTIONS_H_
#define HVD_TRANSPORT_CUDA_FOUND_FUNCTIONS_H_

#include <functional>

namespace hvd {

class FoundFunctions {
 public:
  // The address of the function of that name, or null.
  using Find = std::function<void*(const char* name)>;

  // `find` outlives this object.
  explicit FoundFunctions(const Find& find) : find_(find) {}

  template <typename Function>
  void Set(Function** place, const char* name) {
    void* const found = find_(name);
    if (found == nullptr && missing_ == nullptr) missing_ = name;
    *place = reinterpret_cast<Function*>(found);
  }

  // The first that there is not. Null: all are there.
  const char* missing() const { return missing_; }

 private:
  const Find& find_;
  const char* missing_ = nullptr;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_FOUND_FUNCTIONS_H_
