// SPDX-License-Identifier: Apache-2.0
// Encodes each record once, and each set of records that receivers share once.
#include "core/control/log_sender.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

namespace hvd {
namespace {

// Whom a record concerns.
struct Concerned {
  bool all = false;
  std::vector<bool> ranks;  // otherwise

  bool AnyOf(const std::vector<int>& some) const {
    return all || std::any_of(some.begin(), some.end(),
                              [this](int rank) { return ranks[rank]; });
  }
};

std::vector<Concerned> ConcernedBy(const std::vector<LogRecord>& records,
                                   int size) {
  std::vector<Concerned> concerned(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const Failure* const failure = std::get_if<Failure>(&records[i]);
    concerned[i].all =
        failure == nullptr && !std::holds_alternative<Skipped>(records[i]);
    if (concerned[i].all) continue;
    concerned[i].ranks.resize(static_cast<size_t>(size));
    if (failure == nullptr) continue;
    for (const FailedKey& failed : failure->keys) {
      for (const RankRange& range : failed.ranks) {
        // A gatherer has them from a peer.
        const int last = std::min(range.last, size - 1);
        for (int rank = std::max(range.first, 0); rank <= last; ++rank) {
          concerned[i].ranks[rank] = true;
        }
      }
    }
  }
  return concerned;
}

}  // namespace

LogSender::LogSender(int serial, int size, std::vector<LogReceiver> receivers)
    : serial_(serial),
      size_(size),
      receivers_(std::move(receivers)),
      told_(receivers_.size(), 0) {}

void LogSender::Send(const std::vector<LogRecord>& records,
                     std::vector<OutgoingMessage>* outgoing) {
  std::vector<std::string> encoded;
  std::vector<uint64_t> numbers;
  encoded.reserve(records.size());
  for (const LogRecord& record : records) {
    const Skipped* const skipped = std::get_if<Skipped>(&record);
    log_number_ += skipped != nullptr ? skipped->count : 1;
    numbers.push_back(log_number_);
    encoded.push_back(Encode(record));
  }
  const auto concerned = ConcernedBy(records, size_);
  // The messages, by the last record that a receiver was sent before, and the
  // places in `records` of those that it gets now.
  std::map<std::pair<uint64_t, std::vector<size_t>>, SharedBytes> messages;
  for (size_t i = 0; i < receivers_.size(); ++i) {
    std::vector<size_t> places;
    for (size_t place = 0; place < records.size(); ++place) {
      if (concerned[place].AnyOf(receivers_[i].hears_for)) {
        places.push_back(place);
      }
    }
    if (places.empty()) continue;
    const uint64_t last = numbers[places.back()];
    SharedBytes& bytes = messages[{told_[i], places}];
    if (bytes == nullptr) {
      std::vector<std::string> told;
      uint64_t number = told_[i];
      for (size_t place : places) {
        if (numbers[place] > number + 1) {
          const uint64_t count = numbers[place] - number - 1;
          told.push_back(Encode(LogRecord(Skipped{count})));
        }
        told.push_back(encoded[place]);
        number = numbers[place];
      }
      bytes = Share(EncodeLog(serial_, told_[i] + 1, told));
    }
    outgoing->push_back({receivers_[i].rank, bytes});
    told_[i] = last;
  }
}

void LogSender::CatchUp(std::vector<OutgoingMessage>* outgoing) {
  for (size_t i = 0; i < receivers_.size(); ++i) {
    if (told_[i] == log_number_) continue;
    const LogRecord skipped(Skipped{log_number_ - told_[i]});
    outgoing->push_back(
        {receivers_[i].rank,
         Share(EncodeLog(serial_, told_[i] + 1, {Encode(skipped)}))});
    told_[i] = log_number_;
  }
}

}  // namespace hvd
