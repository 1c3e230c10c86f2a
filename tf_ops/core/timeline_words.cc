// SPDX-License-Identifier: Apache-2.0
// Puts events of a trace into words.
#include "core/timeline_words.h"

#include <cctype>

#include "core/trace_lines.h"

namespace hvd {

std::string Upper(const char* name) {
  std::string text = name;
  for (char& letter : text) {
    letter =
        static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return text;
}

std::string NegotiationOf(Verb verb) {
  return "NEGOTIATE_" + Upper(Name(verb));
}

std::string ArgumentsOf(const SubmittedEvent& event) {
  std::string text = "\"bytes\":";
  AppendNumber(event.bytes, &text);
  text += ",\"dtype\":\"";
  text += Name(event.dtype);
  text += "\",\"step\":";
  AppendNumber(event.step, &text);
  if (event.instance != 0) {
    text += ",\"instance\":";
    AppendNumber(static_cast<int64_t>(event.instance), &text);
  }
  return text;
}

std::string BatchArguments(int serial, int set_id, uint64_t batch) {
  std::string text = JsonMember("set", set_id) + "," +
                     JsonMember("batch", static_cast<int64_t>(batch));
  if (serial != set_id) text += "," + JsonMember("set_serial", serial);
  return text;
}

std::string PrefixOf(Carrier carrier) {
  switch (carrier) {
    case Carrier::kMpi:
      return "MPI_";
    case Carrier::kShm:
      return "SHM_";
    case Carrier::kGpus:
      return "NCCL_";
  }
  return "";
}

}  // namespace hvd
