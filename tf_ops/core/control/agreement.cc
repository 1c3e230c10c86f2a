// SPDX-License-Identifier: Apache-2.0
// Compares the ranks' signatures, and puts the differences into words.
#include "core/control/agreement.h"

#include <algorithm>
#include <utility>

#include "core/quoted.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

using Ranks = std::vector<RankRequest>;

std::string MemoryText(const Signature& signature, const std::vector<int>&) {
  return signature.memory == MemoryKind::kHost ? "CPU" : "GPU";
}

// Checked for every verb, in this order. The first difference is reported.
const std::vector<Property>& CommonProperties() {
  static const auto* properties = new std::vector<Property>{
      {"operation", "Every rank must call the same one under a name.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(Name(s.verb));
       }},
      {"dtype", "Cast it to the same dtype on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(Name(s.dtype));
       }},
      {"device",
       "Place it on the same kind of device on every rank, or set "
       "HVD_GPU_LANE=0 on all.",
       MemoryText},
      {"number of tensors", "Group the same tensors on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return std::to_string(s.shapes.size());
       }},
  };
  return *properties;
}

// A gradient may be sparse on some ranks only. Their programs name no verb.
const std::vector<Property>& KindsOfAllreduce() {
  static const auto* properties = new std::vector<Property>{
      {"kind of tensor",
       "Pass the same kind on every rank, as sparse_as_dense=True does for "
       "gradients.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(
             s.verb == Verb::kSparseAllreduce ? "tf.IndexedSlices" : "dense");
       }},
  };
  return *properties;
}

bool AllReduceToAll(const Ranks& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankRequest& rank) {
    return rank.signature == nullptr ||
           rank.signature->verb == Verb::kAllreduce ||
           rank.signature->verb == Verb::kSparseAllreduce;
  });
}

// There is at least one.
const Signature& FirstOf(const Ranks& ranks) {
  return *std::find_if(ranks.begin(), ranks.end(), [](const RankRequest& rank) {
            return rank.signature != nullptr;
          })->signature;
}

// Such as "ranks 0-1: float32; rank 2: float64". Empty when all are equal.
std::string Differences(const Property& property, const Ranks& ranks) {
  std::vector<int> job_ranks;
  for (const RankRequest& rank : ranks) job_ranks.push_back(rank.job_rank);
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const RankRequest& rank : ranks) {
    if (rank.signature == nullptr) continue;
    std::string value = property.value(*rank.signature, job_ranks);
    auto group = groups.begin();
    while (group != groups.end() && group->first != value) ++group;
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {std::move(value), {}});
    }
    group->second.push_back(rank.job_rank);
  }
  if (groups.size() == 1) return {};
  std::string text;
  for (const auto& [value, members] : groups) {
    if (!text.empty()) text += "; ";
    text += NameRanks(members) + ": " + value;
  }
  return text;
}

// What cannot be while some ranks have joined.
Status CheckAbsent(const std::string& name, const Signature& signature,
                   const Ranks& ranks) {
  const auto refuse = RulesOf(signature.verb).absent_rank_is_missed;
  if (refuse == nullptr) return Status::Ok();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].signature != nullptr) continue;
    if (!refuse(signature, static_cast<int>(rank))) continue;
    return FailedPrecondition(
        std::string(Name(signature.verb)) + " " + Quoted(name) + " needs " +
        NameRanks({ranks[rank].job_rank}) +
        ", which has called hvd.join() and has no tensors any more; leave it "
        "out, or let that rank join later.");
  }
  return Status::Ok();
}

Status Compare(const std::string& name, const std::vector<Property>& properties,
               const Ranks& ranks) {
  for (const Property& property : properties) {
    std::string text = Differences(property, ranks);
    if (text.empty()) continue;
    return Status(StatusCode::kFailedPrecondition,
                  std::string("The ranks disagree on the ") + property.name +
                      " of " + Name(FirstOf(ranks).verb) + " " + Quoted(name) +
                      " (" + text + "). " + property.remedy,
                  {CauseKind::kRanksDiffer, -1, name});
  }
  return Status::Ok();
}

// A fast check for the usual case. It makes no text for every rank.
bool SameOnAll(const Ranks& ranks) {
  // Cached submissions share one Signature, so there is no need to look inside.
  const Signature& first = FirstOf(ranks);
  for (const RankRequest& rank : ranks) {
    if (rank.signature != nullptr && rank.signature != &first &&
        !SameButFirstDims(*rank.signature, first)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string NameRanks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

Status CheckAgreement(const std::string& name,
                      const std::vector<RankRequest>& ranks) {
  for (const RankRequest& rank : ranks) {
    if (rank.error != nullptr && !rank.error->ok()) {
      return Status(rank.error->code(),
                    Quoted(name) + " failed on " + NameRanks({rank.job_rank}) +
                        ": " + rank.error->message(),
                    {CauseKind::kCallFailed, rank.job_rank, name});
    }
  }
  const Signature& first = FirstOf(ranks);
  if (!SameOnAll(ranks)) {
    if (AllReduceToAll(ranks)) {
      HVD_RETURN_IF_ERROR(Compare(name, KindsOfAllreduce(), ranks));
    }
    HVD_RETURN_IF_ERROR(Compare(name, CommonProperties(), ranks));
    HVD_RETURN_IF_ERROR(Compare(name, RulesOf(first.verb).properties, ranks));
  }
  HVD_RETURN_IF_ERROR(CheckAbsent(name, first, ranks));
  const char* const lacks = RulesOf(first.verb).scalar_lacks;
  const bool has_scalar =
      std::any_of(first.shapes.begin(), first.shapes.end(),
                  [](const Shape& shape) { return shape.empty(); });
  if (lacks != nullptr && has_scalar) {
    return FailedPrecondition(std::string(Name(first.verb)) + " " +
                              Quoted(name) +
                              " was given a scalar, which has no " + lacks +
                              "; give it the shape [1].");
  }
  return Status::Ok();
}

}  // namespace hvd
