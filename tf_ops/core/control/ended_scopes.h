// SPDX-License-Identifier: Apache-2.0
// EndedScopes: which ranks will not ask for which names.
#ifndef HVD_CORE_CONTROL_ENDED_SCOPES_H_
#define HVD_CORE_CONTROL_ENDED_SCOPES_H_

#include <string>
#include <vector>

#include "core/control/message.h"

namespace hvd {

// A prefix that ends with "/" covers all names behind it. Another one is a
// name, and covers it with whatever number behind "@".
[[nodiscard]] bool ScopeCovers(const std::string& prefix,
                               const std::string& name);

// A rank's scope is ended until the rank asks for one of its names, or says
// that it is open again. Once all ranks have ended a scope it is forgotten:
// from then on it is another loop, which ranks enter one after the other.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set.
class EndedScopes {
 public:
  struct Scope {
    int rank;
    ScopeEnd end;

    bool covers(const std::string& name) const {
      return ScopeCovers(end.name_prefix, name);
    }
  };

  explicit EndedScopes(int size) : size_(size) {}

  // With an empty text the rank's scope is open again.
  void Set(int rank, const ScopeEnd& end);
  // The rank asks for the name, so its scopes of the name are open again.
  void Reopen(int rank, const std::string& name);
  void ForgetIfAllEnded(const std::string& name_prefix);

  bool empty() const { return scopes_.empty(); }
  // In the order of their ends.
  const std::vector<Scope>& all() const { return scopes_; }

 private:
  const int size_;
  std::vector<Scope> scopes_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_ENDED_SCOPES_H_
