// SPDX-License-Identifier: Apache-2.0
// Non-blocking MPI point-to-point.
#include "transport/mpi/mpi_wire.h"

#include <algorithm>
#include <utility>

#include "transport/mpi/mpi_process.h"
#include "transport/mpi/mpi_status.h"

namespace hvd {
namespace {

constexpr int kMessageTag = 0;

}  // namespace

MpiWire::MpiWire(std::shared_ptr<MpiSession> session, std::vector<int> ranks,
                 int rank, int first_tag)
    : session_(std::move(session)),
      ranks_(std::move(ranks)),
      rank_(rank),
      hosts_(EachAlone(static_cast<int>(ranks_.size()))),
      first_tag_(first_tag) {}

MoveId MpiWire::NewMove(bool is_receive) {
  if (free_.empty()) {
    free_.push_back(requests_.size());
    requests_.push_back(MPI_REQUEST_NULL);
    moves_.push_back({});
  }
  const MoveId id = free_.back();
  free_.pop_back();
  moves_[id] = {true, is_receive};
  return id;
}

void MpiWire::Note(int code, const char* call) {
  if (code != MPI_SUCCESS && status_.ok()) status_ = MpiStatus(code, call);
}

MoveId MpiWire::Send(int peer, uint32_t tag, const void* data, size_t bytes) {
  const MoveId id = NewMove(false);
  Note(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, ranks_[peer],
                 first_tag_ + static_cast<int>(tag), session_->data(),
                 &requests_[id]),
       "MPI_Isend");
  return id;
}

MoveId MpiWire::Receive(int peer, uint32_t tag, void* data, size_t bytes) {
  const MoveId id = NewMove(true);
  Note(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, ranks_[peer],
                 first_tag_ + static_cast<int>(tag), session_->data(),
                 &requests_[id]),
       "MPI_Irecv");
  return id;
}

bool MpiWire::Test(MoveId id) {
  if (!status_.ok()) return false;
  int done = 0;
  Note(MPI_Test(&requests_[id], &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (!done || !status_.ok()) return false;
  moves_[id].in_use = false;
  free_.push_back(id);
  return true;
}

void MpiWire::Abandon(std::vector<StagingBuffer> memory) {
  const bool over = MpiIsFinalised();
  MpiOrphans orphans;
  for (MoveId id = 0; id < moves_.size(); ++id) {
    if (!moves_[id].in_use || requests_[id] == MPI_REQUEST_NULL) continue;
    // A receive without a matching message ends now.
    if (moves_[id].is_receive && !over) MPI_Cancel(&requests_[id]);
    orphans.requests.push_back(requests_[id]);
  }
  orphans.memory =
      std::make_shared<std::vector<StagingBuffer>>(std::move(memory));
  session_->Adopt(std::move(orphans));
}

MpiChannel::MpiChannel(std::shared_ptr<MpiSession> session)
    : session_(std::move(session)) {}

MpiChannel::~MpiChannel() {
  for (SentMail& mail : sent_) Abandon(mail.request, std::move(mail.bytes));
  for (ArrivingMail& mail : arriving_) {
    Abandon(mail.request, std::move(mail.bytes));
  }
}

void MpiChannel::Abandon(MPI_Request request,
                         std::shared_ptr<const void> memory) {
  MpiOrphans orphans;
  if (request != MPI_REQUEST_NULL) orphans.requests.push_back(request);
  orphans.memory = std::move(memory);
  session_->Adopt(std::move(orphans));
}

void MpiChannel::Note(int code, const char* call, int peer) {
  if (code == MPI_SUCCESS || !status_.ok()) return;
  status_ =
      Internal("messages between this rank and rank " + std::to_string(peer) +
               " are lost: " + MpiStatus(code, call).message());
}

void MpiChannel::Send(int peer, SharedBytes message) {
  // The message has its place first. MPI reads it although there may be no
  // memory for a place afterwards.
  SentMail& mail =
      sent_.emplace_back(SentMail{peer, MPI_REQUEST_NULL, std::move(message)});
  Note(MPI_Isend(mail.bytes->data(), static_cast<int>(mail.bytes->size()),
                 MPI_BYTE, peer, kMessageTag, session_->control(),
                 &mail.request),
       "MPI_Isend", peer);
}

bool MpiChannel::Receive(int* peer, std::string* message) {
  while (Probe()) {
  }
  // Messages of other ranks may pass a long message. Later ones of the same
  // rank may not.
  std::vector<int> waiting;
  for (auto mail = arriving_.begin(); mail != arriving_.end(); ++mail) {
    if (std::count(waiting.begin(), waiting.end(), mail->peer) > 0) continue;
    int done = 0;
    Note(MPI_Test(&mail->request, &done, MPI_STATUS_IGNORE), "MPI_Test",
         mail->peer);
    if (!status_.ok()) return false;
    if (!done) {
      waiting.push_back(mail->peer);
      continue;
    }
    *peer = mail->peer;
    *message = std::move(*mail->bytes);
    arriving_.erase(mail);
    return true;
  }
  return false;
}

bool MpiChannel::Probe() {
  int found = 0, bytes = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  Note(MPI_Improbe(MPI_ANY_SOURCE, kMessageTag, session_->control(), &found,
                   &handle, &envelope),
       "MPI_Improbe", session_->rank());
  if (!status_.ok() || !found) return false;
  MPI_Get_count(&envelope, MPI_BYTE, &bytes);
  ArrivingMail& mail = arriving_.emplace_back(ArrivingMail{
      envelope.MPI_SOURCE, MPI_REQUEST_NULL,
      std::make_shared<std::string>(static_cast<size_t>(bytes), '\0')});
  Note(MPI_Imrecv(mail.bytes->data(), bytes, MPI_BYTE, &handle, &mail.request),
       "MPI_Imrecv", mail.peer);
  return status_.ok();
}

bool MpiChannel::Flush() {
  sent_.remove_if([this](SentMail& mail) {
    int done = 0;
    const int code = MPI_Test(&mail.request, &done, MPI_STATUS_IGNORE);
    Note(code, "MPI_Test", mail.peer);
    // A send that has failed is never on its way.
    return code != MPI_SUCCESS || done;
  });
  return !sent_.empty();
}

}  // namespace hvd
