// SPDX-License-Identifier: Apache-2.0
// MpiWire and MpiChannel: moves and messages between ranks of an MpiSession.
#ifndef HVD_TRANSPORT_MPI_MPI_WIRE_H_
#define HVD_TRANSPORT_MPI_MPI_WIRE_H_

#include <mpi.h>

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/status.h"
#include "transport/mpi/mpi_session.h"
#include "transport/wire.h"

namespace hvd {

class MpiWire final : public Wire {
 public:
  // `ranks` are the members' ranks of the job. This rank has the place `rank`
  // among them. Tags of this wire begin at first_tag.
  MpiWire(std::shared_ptr<MpiSession> session, std::vector<int> ranks, int rank,
          int first_tag);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  StagingPool& staging() override { return staging_; }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return false; }
  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override;
  MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) override;
  bool Test(MoveId id) override;
  Status status() const override { return status_; }
  void Abandon(std::vector<StagingBuffer> memory) override;

 private:
  struct Move {
    bool in_use = false;
    bool is_receive = false;
  };

  MoveId NewMove(bool is_receive);
  void Note(int code, const char* call);

  const std::shared_ptr<MpiSession> session_;
  const std::vector<int> ranks_;
  const int rank_;
  const HostMap hosts_;  // each rank on a host of its own
  const int first_tag_;
  HeapStagingPool staging_;
  Status status_;
  // A move's id is its place in this vector. Places are used again.
  std::vector<MPI_Request> requests_;
  std::vector<Move> moves_;
  std::vector<MoveId> free_;
};

class MpiChannel final : public Channel {
 public:
  explicit MpiChannel(std::shared_ptr<MpiSession> session);
  ~MpiChannel() override;
  void Send(int peer, SharedBytes message) override;
  bool Receive(int* peer, std::string* message) override;
  bool Flush() override;
  Status status() const override { return status_; }

 private:
  // Messages that MPI still reads or writes. Their bytes do not move meanwhile.
  struct SentMail {
    int peer = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    SharedBytes bytes;
  };
  struct ArrivingMail {
    int peer = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    std::shared_ptr<std::string> bytes;
  };

  bool Probe();
  // Hands a request that is not done, and its memory, to the session.
  void Abandon(MPI_Request request, std::shared_ptr<const void> memory);
  void Note(int code, const char* call, int peer);

  const std::shared_ptr<MpiSession> session_;
  Status status_;
  std::list<SentMail> sent_;
  std::list<ArrivingMail> arriving_;  // in order of arrival
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_MPI_WIRE_H_
