// SPDX-License-Identifier: Apache-2.0
// Encodes each record once, and each set of records that members share once.
#include "core/control/log_sender.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

namespace hvd {
namespace {

// By record and rank: whether the record concerns the rank. Empty for a record
// that concerns all.
std::vector<std::vector<bool>> ConcernedRanks(
    const std::vector<LogRecord>& records, size_t size) {
  std::vector<std::vector<bool>> concerned(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const Failure* const failure = std::get_if<Failure>(&records[i]);
    if (failure == nullptr) continue;
    concerned[i].resize(size);
    for (const FailedKey& failed : failure->keys) {
      for (const RankRange& range : failed.ranks) {
        std::fill(concerned[i].begin() + range.first,
                  concerned[i].begin() + range.last + 1, true);
      }
    }
  }
  return concerned;
}

}  // namespace

LogSender::LogSender(int set_id, int size)
    : set_id_(set_id), told_(static_cast<size_t>(size), 0) {}

void LogSender::Send(const std::vector<LogRecord>& records,
                     std::vector<OutgoingMessage>* outgoing) {
  std::vector<std::string> encoded;
  encoded.reserve(records.size());
  for (const LogRecord& record : records) encoded.push_back(Encode(record));
  const auto concerned = ConcernedRanks(records, told_.size());
  // The messages, by the last record that a member was sent before, and the
  // places in `records` of those that it gets now.
  std::map<std::pair<uint64_t, std::vector<size_t>>, SharedBytes> messages;
  for (size_t rank = 1; rank < told_.size(); ++rank) {
    std::vector<size_t> places;
    for (size_t i = 0; i < records.size(); ++i) {
      if (concerned[i].empty() || concerned[i][rank]) places.push_back(i);
    }
    if (places.empty()) continue;
    const uint64_t last = log_number_ + places.back() + 1;
    SharedBytes& bytes = messages[{told_[rank], places}];
    if (bytes == nullptr) {
      std::vector<std::string> told;
      uint64_t number = told_[rank];
      for (size_t place : places) {
        const uint64_t next = log_number_ + place + 1;
        if (next > number + 1) {
          told.push_back(Encode(LogRecord(Skipped{next - number - 1})));
        }
        told.push_back(encoded[place]);
        number = next;
      }
      bytes = Share(EncodeLog(set_id_, told_[rank] + 1, told));
    }
    outgoing->push_back({static_cast<int>(rank), bytes});
    told_[rank] = last;
  }
  log_number_ += records.size();
}

void LogSender::CatchUp(std::vector<OutgoingMessage>* outgoing) {
  for (size_t rank = 1; rank < told_.size(); ++rank) {
    if (told_[rank] == log_number_) continue;
    const LogRecord skipped(Skipped{log_number_ - told_[rank]});
    outgoing->push_back(
        {static_cast<int>(rank),
         Share(EncodeLog(set_id_, told_[rank] + 1, {Encode(skipped)}))});
    told_[rank] = log_number_;
  }
}

}  // namespace hvd
