// SPDX-License-Identifier: Apache-2.0
// Compares the ranks' signatures, and puts the differences into words.
#include "core/agreement.h"

#include <charconv>
#include <functional>
#include <utility>

#include "core/response_cache.h"

namespace hvd {
namespace {

using Ranks = std::vector<RankRequest>;
using ValueText = std::function<std::string(const Signature&, const Ranks&)>;

// Something that must be equal on all ranks.
struct Property {
  const char* name;
  const char* remedy;
  ValueText value;
};

std::string NumberText(double value) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  return std::string(text, end);
}

std::string ShapesText(const Signature& signature, bool skip_first_dim) {
  std::string text;
  for (const Shape& shape : signature.shapes) {
    if (!text.empty()) text += ' ';
    if (skip_first_dim && !shape.empty()) {
      std::string rest = ToString(Shape(shape.begin() + 1, shape.end()));
      text += shape.size() == 1 ? "[?]" : "[?," + rest.substr(1);
    } else {
      text += ToString(shape);
    }
  }
  return text;
}

std::string MemoryText(const Signature& signature, const Ranks&) {
  return signature.memory == MemoryKind::kHost ? "CPU" : "GPU";
}

// Checked for every verb, in this order. The first difference is reported.
const std::vector<Property>& CommonProperties() {
  static const auto* properties = new std::vector<Property>{
      {"operation", "Every rank must call the same one under a name.",
       [](const Signature& s, const Ranks&) {
         return std::string(Name(s.verb));
       }},
      {"dtype", "Cast it to the same dtype on every rank.",
       [](const Signature& s, const Ranks&) {
         return std::string(Name(s.dtype));
       }},
      {"device", "Place it on the same kind of device on every rank.",
       MemoryText},
      {"number of tensors", "Group the same tensors on every rank.",
       [](const Signature& s, const Ranks&) {
         return std::to_string(s.shapes.size());
       }},
  };
  return *properties;
}

const std::vector<Property>& PropertiesOf(Verb verb) {
  static const auto* allreduce = new std::vector<Property>{
      {"shape", "Pass the same shape on every rank.",
       [](const Signature& s, const Ranks&) { return ShapesText(s, false); }},
      {"reduce op", "Pass the same op= on every rank.",
       [](const Signature& s, const Ranks&) {
         return std::string(Name(s.reduce_op));
       }},
      {"prescale_factor", "Pass the same prescale_factor= on every rank.",
       [](const Signature& s, const Ranks&) { return NumberText(s.prescale); }},
      {"postscale_factor", "Pass the same postscale_factor= on every rank.",
       [](const Signature& s, const Ranks&) {
         return NumberText(s.postscale);
       }},
      {"compression", "Pass the same compression= on every rank.",
       [](const Signature& s, const Ranks&) {
         return s.wire_dtype == s.dtype ? std::string("none")
                                        : std::string(Name(s.wire_dtype));
       }},
  };
  static const auto* allgather = new std::vector<Property>{
      {"shape behind the first dimension",
       "Only the first dimension may differ between ranks.",
       [](const Signature& s, const Ranks&) { return ShapesText(s, true); }},
  };
  static const auto* broadcast = new std::vector<Property>{
      {"root rank", "Pass the same root_rank on every rank.",
       [](const Signature& s, const Ranks& ranks) {
         return std::to_string(ranks[s.root].job_rank);
       }},
      {"shape", "Pass the same shape on every rank.",
       [](const Signature& s, const Ranks&) { return ShapesText(s, false); }},
  };
  switch (verb) {
    case Verb::kAllreduce:
      return *allreduce;
    case Verb::kAllgather:
      return *allgather;
    case Verb::kBroadcast:
      return *broadcast;
  }
  return *broadcast;
}

// Such as "ranks 0-1: float32; rank 2: float64". Empty when all are equal.
std::string Differences(const Property& property, const Ranks& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const RankRequest& rank : ranks) {
    std::string value = property.value(*rank.signature, ranks);
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

Status Compare(const std::string& name, const std::vector<Property>& properties,
               const Ranks& ranks) {
  for (const Property& property : properties) {
    std::string text = Differences(property, ranks);
    if (text.empty()) continue;
    return Status(StatusCode::kFailedPrecondition,
                  std::string("The ranks disagree on the ") + property.name +
                      " of " + Name(ranks[0].signature->verb) + " '" + name +
                      "' (" + text + "). " + property.remedy,
                  {CauseKind::kRanksDiffer, -1, name});
  }
  return Status::Ok();
}

// A fast check for the usual case. It makes no text for every rank.
bool SameOnAll(const Ranks& ranks) {
  // Cached submissions share one Signature, so there is no need to look inside.
  for (const RankRequest& rank : ranks) {
    if (rank.signature != ranks[0].signature &&
        !SameButFirstDims(*rank.signature, *ranks[0].signature)) {
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
                    "'" + name + "' failed on " + NameRanks({rank.job_rank}) +
                        ": " + rank.error->message(),
                    {CauseKind::kCallFailed, rank.job_rank, name});
    }
  }
  const Signature& first = *ranks[0].signature;
  if (!SameOnAll(ranks)) {
    HVD_RETURN_IF_ERROR(Compare(name, CommonProperties(), ranks));
    HVD_RETURN_IF_ERROR(Compare(name, PropertiesOf(first.verb), ranks));
  }
  if (first.verb == Verb::kAllgather) {
    for (const Shape& shape : first.shapes) {
      if (shape.empty()) {
        return FailedPrecondition(
            "allgather '" + name +
            "' was given a scalar, which has no dimension to gather along; "
            "give it the shape [1].");
      }
    }
  }
  return Status::Ok();
}

}  // namespace hvd
