// SPDX-License-Identifier: Apache-2.0
// Lists what each rank waits for, and finds names that belong together.
#include "core/control/mismatch.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "core/control/agreement.h"
#include "core/control/stall.h"
#include "core/quoted.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

constexpr size_t kPairsShown = 4;
// Pairs are looked for among so many tensors. Nobody would read more.
constexpr size_t kMostTensors = 64;

// Such as "rank 0: 'a'; ranks 1-3: 'b', 'c'".
std::string NamesOfRanks(const std::vector<WaitedFor>& tensors,
                         const std::vector<int>& ranks) {
  std::map<int, std::vector<std::string>> names;
  for (const WaitedFor& tensor : tensors) {
    for (int rank : tensor.ranks) names[rank].push_back(tensor.name);
  }
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (int rank : ranks) {
    const std::string text = NameSome(names[rank]);
    const auto group =
        std::find_if(groups.begin(), groups.end(),
                     [&](const auto& known) { return known.first == text; });
    if (group != groups.end()) {
      group->second.push_back(rank);
    } else {
      groups.push_back({text, {rank}});
    }
  }
  std::string text;
  for (const auto& [some, members] : groups) {
    if (!text.empty()) text += "; ";
    text += NameRanks(members) + ": " + some;
  }
  return text;
}

size_t CommonLength(const std::string& a, const std::string& b) {
  const auto begin = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto end = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<size_t>((begin.first - a.begin()) +
                             (end.first - a.rbegin()));
}

// How well two names fit together. The number of ranks that they cover counts
// first, then what the names have in common. {0, 0}: not at all.
std::pair<size_t, size_t> Fit(const WaitedFor& a, const WaitedFor& b) {
  std::vector<int> both;
  std::set_intersection(a.ranks.begin(), a.ranks.end(), b.ranks.begin(),
                        b.ranks.end(), std::back_inserter(both));
  if (!both.empty() || !SameButFirstDims(*a.signature, *b.signature)) {
    return {0, 0};
  }
  return {a.ranks.size() + b.ranks.size(), CommonLength(a.name, b.name)};
}

std::string LikelyPairs(const std::vector<WaitedFor>& tensors) {
  const size_t count = std::min(tensors.size(), kMostTensors);
  std::vector<bool> is_paired(count, false);
  std::string text;
  size_t pairs = 0;
  for (size_t i = 0; i < count && pairs < kPairsShown; ++i) {
    size_t best = i;
    std::pair<size_t, size_t> best_fit{0, 0};
    for (size_t j = i + 1; j < count; ++j) {
      const auto fit = Fit(tensors[i], tensors[j]);
      if (is_paired[i] && is_paired[j]) continue;
      if (fit > best_fit) {
        best = j;
        best_fit = fit;
      }
    }
    if (best == i) continue;
    is_paired[i] = is_paired[best] = true;
    ++pairs;
    text += " " + Quoted(tensors[i].name) + " on " +
            NameRanks(tensors[i].ranks) + " and " + Quoted(tensors[best].name) +
            " on " + NameRanks(tensors[best].ranks) +
            " look like one tensor under two names.";
  }
  return text;
}

}  // namespace

std::string MismatchText(std::vector<WaitedFor> tensors,
                         const std::vector<int>& ranks, double silent_s) {
  // So that the text does not depend on the order of the requests.
  std::sort(
      tensors.begin(), tensors.end(),
      [](const WaitedFor& a, const WaitedFor& b) { return a.name < b.name; });
  return "Every rank waits for a tensor that some other rank has not asked "
         "for, and nothing new has been asked for in " +
         WholeSeconds(silent_s) + " (" + NamesOfRanks(tensors, ranks) + ")." +
         LikelyPairs(tensors) +
         " Ranks match tensors by name: give them the same name= and run the "
         "same operations on every rank.";
}

}  // namespace hvd
