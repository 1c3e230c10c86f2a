// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for what peers tell.
#include <algorithm>
#include <utility>
#include <variant>

#include "core/background_loop.h"
#include "core/overloaded.h"

namespace hvd {

bool BackgroundLoop::ReceiveMessages() {
  int peer = 0;
  std::string bytes;
  bool moved = false;
  while (channel_.Receive(&peer, &bytes)) {
    moved = true;
    Result<Envelope> envelope = Decode(bytes);
    Status status = envelope.ok() ? Handle(peer, std::move(envelope.value()))
                                  : envelope.status();
    if (!status.ok()) {
      Break("a message from " + names_.Of(peer) +
            " makes no sense: " + status.message());
    }
  }
  return moved;
}

Status BackgroundLoop::Handle(int peer, Envelope envelope) {
  peer_watch_.Heard(peer, awake_);
  return std::visit(
      Overloaded{
          [&](Beat& beat) {
            peer_watch_.Handle(peer, beat, now_);
            timeline_.HandleAnswer(peer, beat);
            return Status::Ok();
          },
          [&](PeerEnds& ends) { return HandleEnds(peer, std::move(ends)); },
          [&](HostTold& told) {
            ends_.Handle(peer, told);
            return Status::Ok();
          },
          [&](TimelineControl& control) {
            return timeline_.Handle(peer, control, now_);
          },
          [&](TimelineChunk& chunk) {
            return timeline_.Handle(peer, std::move(chunk));
          },
          [&](TimelineReceipt& receipt) {
            return timeline_.Handle(peer, receipt);
          },
          // The others are of a set.
          [&](auto& of_set) {
            const Result<Sender> sender = FindSender(peer, envelope.serial);
            if (!sender.ok()) return sender.status();
            if (sender.value().set == nullptr) return Status::Ok();
            return Handle(sender.value(), std::move(of_set));
          },
      },
      envelope.message);
}

Result<BackgroundLoop::Sender> BackgroundLoop::FindSender(int peer,
                                                          int serial) {
  Set* const set = FindSet(serial);
  if (set == nullptr && known_sets_.IsGone(serial)) return Sender{};
  if (set == nullptr) {
    return Internal("this rank is not in process set " +
                    std::to_string(serial) + ".");
  }
  const std::vector<int>& ranks = set->process_set.ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), peer);
  if (found == ranks.end()) {
    return Internal("the sender is not in process set " +
                    std::to_string(serial) + ".");
  }
  return Sender{set, static_cast<int>(found - ranks.begin())};
}

Status BackgroundLoop::Handle(const Sender& sender, const Report& report) {
  return sender.set->negotiator->HandleReport(sender.rank, report, awake_);
}

Status BackgroundLoop::Handle(const Sender& sender, HostReport report) {
  return sender.set->negotiator->HandleHostReport(sender.rank,
                                                  std::move(report), awake_);
}

Status BackgroundLoop::Handle(const Sender& sender, const LogMessage& log) {
  if (sender.rank != sender.set->negotiator->upper()) {
    return Internal("a log came from a rank that does not send it here.");
  }
  return sender.set->negotiator->HandleLog(log);
}

}  // namespace hvd
