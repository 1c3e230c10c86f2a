// SPDX-License-Identifier: Apache-2.0
// Keeps the ends of scopes that still hold.
#include "core/control/ended_scopes.h"

#include <algorithm>

namespace hvd {
namespace {

template <typename Predicate>
void EraseIf(std::vector<EndedScopes::Scope>* scopes,
             const Predicate& predicate) {
  scopes->erase(std::remove_if(scopes->begin(), scopes->end(), predicate),
                scopes->end());
}

}  // namespace

bool ScopeCovers(const std::string& prefix, const std::string& name) {
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  if (name.size() == prefix.size() || prefix.empty()) return true;
  return prefix.back() == '/' || name[prefix.size()] == '@';
}

void EndedScopes::Set(int rank, const ScopeEnd& end) {
  EraseIf(&scopes_, [&](const Scope& scope) {
    return scope.rank == rank && scope.end.name_prefix == end.name_prefix;
  });
  if (!end.text.empty()) scopes_.push_back({rank, end});
}

void EndedScopes::Reopen(int rank, const std::string& name) {
  EraseIf(&scopes_, [&](const Scope& scope) {
    return scope.rank == rank && scope.covers(name);
  });
}

void EndedScopes::ForgetIfAllEnded(const std::string& name_prefix) {
  const auto is_of_it = [&](const Scope& scope) {
    return scope.end.name_prefix == name_prefix;
  };
  if (std::count_if(scopes_.begin(), scopes_.end(), is_of_it) < size_) return;
  EraseIf(&scopes_, is_of_it);
}

}  // namespace hvd
