// SPDX-License-Identifier: Apache-2.0
// The part of Leader that takes the reports of whole hosts.
#include <algorithm>
#include <utility>

#include "core/control/agreement.h"
#include "core/control/leader.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// What has waited for less is of no interest to anybody yet.
constexpr std::chrono::milliseconds kYoung{50};

}  // namespace

Status Leader::HandleHost(int gatherer, HostReport report,
                          Clock::time_point now) {
  const int host = tree_.HostOfGatherer(gatherer);
  if (host < 0) {
    return Internal(NameRanks({job_ranks_[gatherer]}) +
                    " reports for a host, and gathers for none.");
  }
  HVD_RETURN_IF_ERROR(CheckLogSeen(host, report.log_seen));
  for (HostItem& item : report.items) {
    HVD_RETURN_IF_ERROR(std::visit(
        [&](auto& value) { return HandleHostItem(host, &value, now); }, item));
  }
  NoteLogSeen(host, report.log_seen);
  return Status::Ok();
}

Status Leader::CheckOfHost(int host, const std::vector<int>& ranks) const {
  const std::vector<int>& its = tree_.hosts().ranks[host];
  const bool ascend =
      !ranks.empty() &&
      std::adjacent_find(ranks.begin(), ranks.end(),
                         [](int a, int b) { return a >= b; }) == ranks.end();
  const bool are_its = ascend && std::includes(its.begin(), its.end(),
                                               ranks.begin(), ranks.end());
  if (are_its) return Status::Ok();
  return Internal(NameRanks({job_ranks_[its.front()]}) +
                  " reports for ranks that are not all of its host.");
}

Status Leader::HandleHostItem(int host, HostMemberItem* member,
                              Clock::time_point now) {
  if (member->rank < 0 || member->rank >= size_ ||
      tree_.hosts().host[member->rank] != host) {
    return CheckOfHost(host, {member->rank});  // says so
  }
  return std::visit(
      [&](const auto& item) { return HandleItem(member->rank, item, now); },
      member->item);
}

Status Leader::HandleHostItem(int host, HostSubmissions* item,
                              Clock::time_point now) {
  HVD_RETURN_IF_ERROR(CheckOfHost(host, item->ranks));
  const std::vector<int>& ranks = item->ranks;
  const auto steps =
      std::make_shared<const std::vector<int64_t>>(std::move(item->steps));
  bool is_usual = IsUsual(host, ranks, *steps);
  matcher_.Heard(now);
  for (SignatureNumber number : item->numbers) {
    HostMatcher::Partial* partial = nullptr;
    if (is_usual) {
      Result<HostMatcher::Partial*> found = FindPartial(host, number, now);
      if (!found.ok()) return found.status();
      partial = found.value();
    }
    if (partial != nullptr) {
      if (host_matcher_.Add(partial, host, steps)) Agree(number, *partial);
      continue;
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      const CachedSubmissions cached{(*steps)[i], {number}};
      HVD_RETURN_IF_ERROR(HandleItem(ranks[i], cached, now));
    }
    // The ranks may have disagreed, and lost these steps.
    is_usual = is_usual && IsUsual(host, ranks, *steps);
  }
  return Status::Ok();
}

bool Leader::IsUsual(int host, const std::vector<int>& ranks,
                     const std::vector<int64_t>& steps) const {
  if (ranks.size() != tree_.hosts().ranks[host].size()) return false;
  if (matcher_.joined_count() > 0 || !aborts_.is_calm()) return false;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (aborts_.IsLost(ranks[i], steps[i])) return false;
  }
  return true;
}

Result<HostMatcher::Partial*> Leader::FindPartial(int host,
                                                  SignatureNumber number,
                                                  Clock::time_point now) {
  if (HostMatcher::Partial* const partial = host_matcher_.Find(number)) {
    if (partial->steps[host] == nullptr) return partial;
    MoveToMatcher(number);  // for the second time
    return nullptr;
  }
  if (matcher_.FindByNumber(number) != nullptr) return nullptr;
  const auto* const remembered = numbers_.Recall(number);
  if (remembered == nullptr) {
    return Internal("unknown cache number " + std::to_string(number) + ".");
  }
  // The matcher's way finds out whether it may come as a number.
  if (SizesInLog(remembered->signature->verb, size_)) return nullptr;
  MoveToMatcher(remembered->key);  // another number of the name
  if (matcher_.Find(remembered->key) != nullptr) return nullptr;
  return host_matcher_.Begin(number, *remembered, now);
}

void Leader::Agree(SignatureNumber number,
                   const HostMatcher::Partial& partial) {
  const HostMap& hosts = tree_.hosts();
  steps_.assign(static_cast<size_t>(size_), 0);
  for (int host = 0; host < hosts.host_count(); ++host) {
    const std::vector<int>& ranks = hosts.ranks[host];
    for (size_t i = 0; i < ranks.size(); ++i) {
      steps_[ranks[i]] = (*partial.steps[host])[i];
    }
  }
  // All ranks have asked for what was agreed on before under this number. So
  // there is nothing to compare.
  Agreed agreed;
  agreed.key = partial.remembered.key;
  agreed.signature_number = number;
  agreed.signature = partial.remembered.signature;
  PlanAgreed(std::move(agreed));
  host_matcher_.Erase(number);
}

void Leader::MoveToMatcher(SignatureNumber number) {
  HostMatcher::Partial* const partial = host_matcher_.Find(number);
  const auto& signature = partial->remembered.signature;
  Pending* const pending =
      matcher_.FindOrAdd(partial->remembered.key, partial->since);
  for (int host = 0; host < tree_.hosts().host_count(); ++host) {
    if (partial->steps[host] == nullptr) continue;
    const std::vector<int>& ranks = tree_.hosts().ranks[host];
    for (size_t i = 0; i < ranks.size(); ++i) {
      Waiting waiting{nullptr, (*partial->steps[host])[i], nullptr};
      matcher_.SetSignature(&waiting, pending, *signature, signature);
      // Some host has not submitted it, so it does not become complete.
      matcher_.Add(ranks[i], pending, std::move(waiting));
    }
  }
  matcher_.SetNumber(pending, number);
  host_matcher_.Erase(number);
}

void Leader::MoveToMatcher(const Key& key) {
  if (host_matcher_.empty() || key.instance != 0) return;
  const SignatureNumber number = host_matcher_.NumberOf(key.name);
  if (number != 0) MoveToMatcher(number);
}

void Leader::MoveAllToMatcher() {
  for (SignatureNumber number : host_matcher_.Since(Clock::time_point::max())) {
    MoveToMatcher(number);
  }
}

void Leader::AddReporters(Stall* stall) const {
  if (!tree_.is_on()) return;
  for (int job_rank : stall->missing) {
    const auto found =
        std::lower_bound(job_ranks_.begin(), job_ranks_.end(), job_rank);
    const int host = tree_.hosts().host[found - job_ranks_.begin()];
    stall->reporters.push_back(job_ranks_[tree_.hosts().ranks[host].front()]);
  }
}

void Leader::MoveOldToMatcher(Clock::time_point now) {
  for (SignatureNumber number : host_matcher_.Since(now - kYoung))
    MoveToMatcher(number);
}

}  // namespace hvd
