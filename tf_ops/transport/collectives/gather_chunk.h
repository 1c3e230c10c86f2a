// SPDX-License-Identifier: Apache-2.0
// GatherChunk: a chunk in which a block of every rank goes to all ranks.
//
// A rank sends its block to all ranks of its host, and to one rank of each
// other host. That rank relays it within its host.
#ifndef HVD_TRANSPORT_COLLECTIVES_GATHER_CHUNK_H_
#define HVD_TRANSPORT_COLLECTIVES_GATHER_CHUNK_H_

#include <cstdint>
#include <vector>

#include "transport/collectives/chunk.h"

namespace hvd {

// The bytes of a rank's block at most. Those of all ranks move at once.
[[nodiscard]] int64_t GatheredBlockBytes(const BatchWork& work);

class GatherChunk : public Chunk {
 public:
  GatherChunk(Phase* phase, int64_t index);
  bool Advance() override;

 protected:
  // Before Start, for each rank in turn: what its block has. A rank without
  // data still sends its first block, because that has its state.
  void AddContribution(int64_t bytes);

  // Labels this rank's block and fills it. True: it has data.
  virtual bool PackOwn(const Block& block) = 0;
  // A rank's data is here, this rank's own too. True: it has been used. False:
  // it stays until Finish has returned.
  virtual bool Take(int origin, const Block& block) = 0;
  // All blocks are here.
  virtual void Finish() {}

  // Null: that rank has no data in this chunk.
  const std::byte* DataOf(int origin) const {
    const Contribution& contribution = contributions_[origin];
    return contribution.block.payload_bytes > 0 ? Content(contribution.block)
                                                : nullptr;
  }

  void Post() override;

 private:
  // The block of a rank.
  struct Contribution {
    Block block;
    bool exists = false;
    bool awaited = false;
    bool kept = false;
    MoveId move = 0;
  };

  enum Hop { kOwn = 0, kPassedOn = 1 };

  // The rank that relays the origin's block within `host`, which is not the
  // origin's host.
  int RelayOf(int origin, int host) const;
  // Whether this rank relays the origin's block.
  bool IsRelayed(int origin) const;
  // The rank that sends the origin's block to this rank, and the hop.
  int SenderOf(int origin) const;
  Hop HopOf(int origin) const;
  void SendWithinHost(Hop hop, const Block& block);
  // Relays blocks in the order of their origins. The receivers expect that
  // order.
  void PassOn();
  void Arrived(int origin);
  void Complete();

  const int host_;
  std::vector<Contribution> contributions_;  // by origin
  std::vector<MoveId> sends_;
  int missing_ = 0;
  int next_relayed_ = 0;  // an origin
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_GATHER_CHUNK_H_
