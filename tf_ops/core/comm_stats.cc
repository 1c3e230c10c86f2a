// SPDX-License-Identifier: Apache-2.0
// Writes the counters as JSON.
#include "core/comm_stats.h"

#include <utility>

namespace hvd {
namespace {

std::string Member(const char* name, const Counter& counter) {
  return std::string("\"") + name + "\":" + std::to_string(counter.value());
}

std::string ToJson(const VerbCounters& verb) {
  return "{" + Member("collectives", verb.collectives) + "," +
         Member("batches", verb.batches) + "," + Member("rows", verb.rows) +
         "," + Member("blocks", verb.blocks) + "," +
         Member("payload_bytes", verb.payload_bytes) + "," +
         Member("header_bytes", verb.header_bytes) + "}";
}

}  // namespace

std::string ToJson(const CommCounters& counters) {
  const std::pair<const char*, const Counter*> control[] = {
      {"control_messages_sent", &counters.control_messages_sent},
      {"control_messages_received", &counters.control_messages_received},
      {"control_bytes_sent", &counters.control_bytes_sent},
      {"control_bytes_received", &counters.control_bytes_received}};
  std::string text = "{";
  for (const auto& [name, counter] : control) {
    text += Member(name, *counter) + ",";
  }
  text += "\"verbs\":{";
  for (size_t verb = 0; verb < counters.verbs.size(); ++verb) {
    text += std::string(verb > 0 ? "," : "") + "\"" +
            Name(static_cast<Verb>(verb)) +
            "\":" + ToJson(counters.verbs[verb]);
  }
  return text + "}}";
}

}  // namespace hvd
