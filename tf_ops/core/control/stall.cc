// SPDX-License-Identifier: Apache-2.0
// The texts of warnings and failures for ranks that keep others waiting.
#include "core/control/stall.h"

#include <algorithm>
#include <cstdint>

#include "core/decimal.h"
#include "core/quoted.h"

namespace hvd {
namespace {

constexpr size_t kNamesShown = 4;
constexpr char kIsSilent[] =
    "it is stopped (SIGSTOP, a debugger), swapped out or cut off";
constexpr char kWhenSilent[] =
    "It is stopped (SIGSTOP, a debugger), swapped out or cut off; where such "
    "pauses are expected, allow longer ones.";
constexpr char kStacksFollow[] =
    " The Python stacks of the ranks that answer follow, each in its own "
    "rank's output.";

std::string Count(size_t count, const std::string& things) {
  return std::to_string(count) + " " + things + (count == 1 ? "" : "s");
}

std::string CountTensors(size_t count) { return Count(count, "tensor"); }

std::string Limit(double limit_s) {
  std::string text = DecimalText(limit_s, 6);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return "HVD_STALL_SHUTDOWN_S=" + text;
}

}  // namespace

std::string WholeSeconds(double seconds) {
  return std::to_string(static_cast<int64_t>(seconds + 0.5)) + " s";
}

std::string NameSome(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    text += (i > 0 ? ", " : "") + Quoted(names[i]);
  }
  if (names.size() > kNamesShown) {
    text += " and " + std::to_string(names.size() - kNamesShown) + " more";
  }
  return text;
}

std::string StallWarning(const Stall& stall, const std::string& missing) {
  const bool one = stall.missing.size() == 1;
  return "For " + WholeSeconds(stall.waited_s) + " " +
         Count(stall.names.size(), stall.are_calls ? "call" : "tensor") +
         (stall.names.size() == 1 ? " has" : " have") + " waited for " +
         missing + ": " + NameSome(stall.names) + ". " +
         (one ? "That rank answers, so it is slow or does"
              : "These ranks answer, so they are slow or do") +
         " not run the same operations." + kStacksFollow;
}

std::string GpuWarning(const Stall& stall, bool is_own,
                       const std::string& rank) {
  // Nobody waits for the names of what was said to be done.
  const std::string what =
      stall.names.empty() ? "a batch" : CountTensors(stall.names.size());
  const std::string names =
      stall.names.empty() ? "" : ": " + NameSome(stall.names);
  const std::string has = stall.names.size() > 1 ? " have" : " has";
  return "For " + WholeSeconds(stall.waited_s) + " " + what + has +
         (is_own
              ? " waited for the GPU of " + rank + names +
                    ". It has other work before that, or hangs."
              : " been with the GPUs of several ranks" + names + ". That of " +
                    rank + " waits for another one, or hangs.") +
         kStacksFollow;
}

std::string SilenceWarning(const Silence& silence, const std::string& rank,
                           const std::vector<std::string>& names) {
  const std::string waits = names.empty()
                                ? " Nothing waits for it on this rank."
                                : " " + CountTensors(names.size()) +
                                      (names.size() == 1 ? " waits" : " wait") +
                                      " on this rank: " + NameSome(names) + ".";
  return rank + " has not answered for " + WholeSeconds(silence.silent_s) +
         ": " + kIsSilent + "." + waits + kStacksFollow;
}

std::string StallFailure(const Stall& stall, const std::string& others,
                         bool is_silent, double limit_s) {
  const std::string also = others.empty() ? "" : ", like " + others + ",";
  return (is_silent ? "it has not answered, and for " : "for ") +
         WholeSeconds(stall.waited_s) + " it" + also + " has not asked for " +
         NameSome(stall.names) + ", which other ranks wait for, and " +
         Limit(limit_s) + " ends the job then. " +
         (is_silent ? kWhenSilent
                    : "Its Python stack in its output shows where it was; if "
                      "it is only slow, give it longer.");
}

std::string GpuFailure(const Stall& stall, bool is_own, double limit_s) {
  const std::string names =
      stall.names.empty() ? "a batch" : NameSome(stall.names);
  return "for " + WholeSeconds(stall.waited_s) +
         (is_own ? " its GPU has not come to " + names +
                       ", which other ranks wait for,"
                 : " its GPU has waited for another one in " + names +
                       ", or it hangs,") +
         " and " + Limit(limit_s) +
         " ends the job then. If it is only slow, give it longer.";
}

std::string SilenceFailure(const Silence& silence,
                           const std::vector<std::string>& names,
                           double limit_s) {
  const std::string waits =
      names.empty() ? "" : " (" + NameSome(names) + " waited)";
  return "it has not answered for " + WholeSeconds(silence.silent_s) + waits +
         ", and " + Limit(limit_s) + " ends the job then. " + kWhenSilent;
}

}  // namespace hvd
