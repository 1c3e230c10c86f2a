// SPDX-License-Identifier: Apache-2.0
// What a timeline calls things, and the arguments that it gives them.
#ifndef HVD_CORE_TIMELINE_WORDS_H_
#define HVD_CORE_TIMELINE_WORDS_H_

#include <cstdint>
#include <string>

#include "core/trace_events.h"
#include "core/types.h"

namespace hvd {

// In capitals, as Horovod has verbs.
[[nodiscard]] std::string Upper(const char* name);

[[nodiscard]] std::string NegotiationOf(Verb verb);

[[nodiscard]] std::string ArgumentsOf(const SubmittedEvent& event);

// What users call a set by may be used again. Its serial may not.
[[nodiscard]] std::string BatchArguments(int serial, int set_id,
                                         uint64_t batch);

// Horovod's names.
[[nodiscard]] std::string PrefixOf(Carrier carrier);

}  // namespace hvd

#endif  // HVD_CORE_TIMELINE_WORDS_H_
