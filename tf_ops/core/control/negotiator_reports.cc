// SPDX-License-Identifier: Apache-2.0
// The part of Negotiator that passes reports up, and the log down.
#include <utility>

#include "core/control/negotiator.h"

namespace hvd {

Status Negotiator::HandleReport(int rank, const Report& report,
                                Clock::time_point now) {
  if (!ended_.ok()) return Status::Ok();  // the set's log is closed
  if (gatherer_ != nullptr) {
    if (report.log_seen > log_seen_) {
      return Internal("a report names log record " +
                      std::to_string(report.log_seen) + " of " +
                      std::to_string(log_seen_) + ".");
    }
    return gatherer_->Add(rank, report, now);
  }
  if (leader_ != nullptr) return leader_->Handle(rank, report, now);
  return Internal("a report came to a rank that does not lead set " +
                  std::to_string(serial_) + ".");
}

Status Negotiator::HandleHostReport(int rank, HostReport report,
                                    Clock::time_point now) {
  if (!ended_.ok()) return Status::Ok();
  if (leader_ != nullptr) {
    return leader_->HandleHost(rank, std::move(report), now);
  }
  return Internal("a host's report came to a rank that does not lead set " +
                  std::to_string(serial_) + ".");
}

Status Negotiator::TellNews(Clock::time_point now) {
  log_told_ = log_seen_;
  Envelope envelope{serial_, Report{log_seen_, std::move(news_)}};
  Report& report = std::get<Report>(envelope.message);
  Status status;
  if (gatherer_ == nullptr && leader_ == nullptr) {
    outgoing_.push_back({tree_.upper(), Share(Encode(envelope))});
  } else {
    status = HandleReport(rank_, report, now);
  }
  news_ = std::move(report.items);  // keeps its memory
  news_.clear();
  return status;
}

Result<bool> Negotiator::TellGathered(Clock::time_point now) {
  if (!ended_.ok()) return false;
  std::optional<HostReport> report = gatherer_->Take(now);
  if (!report.has_value()) return false;
  if (leader_ == nullptr) {
    outgoing_.push_back({0, Share(Encode({serial_, std::move(*report)}))});
    return true;
  }
  const Status status = leader_->HandleHost(rank_, std::move(*report), now);
  if (!status.ok()) return status;
  return true;
}

std::optional<Negotiator::Clock::time_point> Negotiator::due() const {
  if (gatherer_ == nullptr || !ended_.ok()) return std::nullopt;
  return gatherer_->due();
}

void Negotiator::HandOn(const LogMessage& log) {
  if (gatherer_ == nullptr) return;
  log_sender_.Send(log.records, &outgoing_);
  // A rank that waits for the end of the log must hear of it.
  if (!ended_.ok()) log_sender_.CatchUp(&outgoing_);
}

}  // namespace hvd
