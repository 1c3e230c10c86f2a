// SPDX-License-Identifier: Apache-2.0
// SetRegistry: the process sets that calls of this rank may name.
#ifndef HVD_CORE_SET_REGISTRY_H_
#define HVD_CORE_SET_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>

#include "core/process_set.h"

namespace hvd {

// The sets change while the framework's threads use them. So each thread gets
// an immutable snapshot. A set that was removed lives as long as somebody has
// it.
//
// The background thread adds and removes sets. Any thread may read.
class SetRegistry {
 public:
  using Sets = std::map<int, ProcessSetPtr>;  // by id

  // Null for an unknown id.
  ProcessSetPtr Find(int id) const;
  std::shared_ptr<const Sets> all() const;

  void Add(ProcessSetPtr set);
  void Remove(int id);

  // Around a fork, so that the child can read.
  void BeforeFork() { mutex_.lock(); }
  void AfterFork() { mutex_.unlock(); }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Sets> sets_ = std::make_shared<const Sets>();
};

}  // namespace hvd

#endif  // HVD_CORE_SET_REGISTRY_H_
