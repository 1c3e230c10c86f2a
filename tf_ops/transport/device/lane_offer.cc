// SPDX-License-Identifier: Apache-2.0
// Finds what keeps GPUs apart.
#include "transport/device/lane_offer.h"

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

std::string NameOf(size_t rank, const std::vector<int>& job_ranks) {
  const int number =
      job_ranks.empty() ? static_cast<int>(rank) : job_ranks[rank];
  return "rank " + std::to_string(number);
}

template <size_t kBytes>
void Write(const std::string& why, char (*text)[kBytes]) {
  const size_t length = std::min(why.size(), kBytes - 1);
  std::memcpy(*text, why.data(), length);
  (*text)[length] = '\0';
  if (length == 0) (*text)[0] = '?';
}

template <size_t kBytes>
std::string Read(const char (&text)[kBytes]) {
  return std::string(text, strnlen(text, kBytes));
}

// The first refusal that has this `guess`.
Status FindRefusal(const std::vector<LaneOffer>& offers, int32_t guess,
                   const std::vector<int>& job_ranks) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const LaneOffer& offer = offers[rank];
    if (offer.refusal[0] == '\0' || offer.guess != guess) continue;
    return FailedPrecondition(NameOf(rank, job_ranks) +
                              " says: " + Read(offer.refusal));
  }
  return Status::Ok();
}

// Two ranks have one GPU, and it was not said of both that they may.
bool IsShared(const LaneOffer& left, const LaneOffer& right) {
  if (left.may_share_gpu != 0 && right.may_share_gpu != 0) return false;
  return std::memcmp(left.gpu, right.gpu, sizeof(left.gpu)) == 0;
}

Status DecideByHost(const std::vector<LaneOffer>& offers, const HostMap& hosts,
                    const std::vector<int>& job_ranks) {
  const std::string begin = "HVD_HIERARCHICAL_ALLREDUCE is set, but ";
  const size_t ranks = hosts.ranks[0].size();
  for (const std::vector<int>& others : hosts.ranks) {
    if (others.size() == ranks) continue;
    return FailedPrecondition(
        begin + NameOf(0, job_ranks) + "'s host has " + std::to_string(ranks) +
        " ranks, and that of " +
        NameOf(static_cast<size_t>(others[0]), job_ranks) + " has " +
        std::to_string(others.size()));
  }
  if (ranks == 1) return FailedPrecondition(begin + "each host has one rank");
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].has_kernels != 0) continue;
    return FailedPrecondition(begin + NameOf(rank, job_ranks) +
                              " has no GPU kernels");
  }
  return Status::Ok();
}

}  // namespace

void LaneOffer::Refuse(const std::string& why) { Write(why, &refusal); }

void LaneOffer::HasNoKernels(const std::string& why) {
  has_kernels = 0;
  Write(why, &no_kernels);
}

std::string LackOfKernels(const std::vector<LaneOffer>& offers,
                          const std::vector<int>& job_ranks) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].has_kernels != 0) continue;
    std::string why = Read(offers[rank].no_kernels);
    if (!why.empty() && why.back() == '.') why.pop_back();
    return NameOf(rank, job_ranks) + " has no GPU kernels: " + why;
  }
  return "";
}

bool IsByHost(const std::vector<LaneOffer>& offers, const HostMap& hosts) {
  return hosts.host_count() > 1 &&
         std::any_of(offers.begin(), offers.end(), [](const LaneOffer& offer) {
           return offer.is_hierarchical != 0;
         });
}

Status Decide(const std::vector<LaneOffer>& offers, const HostMap& hosts,
              const std::vector<int>& job_ranks) {
  for (const int32_t guess :
       {LaneOffer::kNoGuess, LaneOffer::kWaited, LaneOffer::kToldByPeer}) {
    HVD_RETURN_IF_ERROR(FindRefusal(offers, guess, job_ranks));
  }
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const LaneOffer& offer = offers[rank];
    const std::string name = NameOf(rank, job_ranks);
    if (offer.version != offers[0].version) {
      return FailedPrecondition("NCCL's version is " +
                                std::to_string(offers[0].version) + " on " +
                                NameOf(0, job_ranks) + " and " +
                                std::to_string(offer.version) + " on " + name);
    }
    for (size_t other = 0; other < rank; ++other) {
      if (IsShared(offers[other], offer)) {
        return FailedPrecondition(NameOf(other, job_ranks) + " and " + name +
                                  " share a GPU");
      }
    }
  }
  return IsByHost(offers, hosts) ? DecideByHost(offers, hosts, job_ranks)
                                 : Status::Ok();
}

}  // namespace hvd
