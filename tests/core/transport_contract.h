// SPDX-License-Identifier: Apache-2.0
// The contract of transports as cases that every backend has to pass.
//
// A case is run by all ranks of a job at once, each with its ContractRank: by
// transport_test.cc on threads, by transport_mpi_test.cc under mpirun.
#ifndef HVD_TESTS_CORE_TRANSPORT_CONTRACT_H_
#define HVD_TESTS_CORE_TRANSPORT_CONTRACT_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/transport.h"

namespace hvd {

// One rank's view of a case.
class ContractRank {
 public:
  // Slots from first_slot on are this case's.
  ContractRank(Backend* backend, int first_slot, int64_t chunk_bytes,
               bool shares_memory = false)
      : backend_(backend),
        next_slot_(first_slot),
        chunk_bytes_(chunk_bytes),
        shares_memory_(shares_memory) {}

  Backend& backend() { return *backend_; }
  int rank() const { return backend_->topology().rank; }
  int size() const { return backend_->topology().size; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  // The hosts that ranks are added up by, first within them: of each rank. One
  // where they do not share memory.
  std::vector<int> host_of() const {
    return shares_memory_ ? backend_->topology().host_of
                          : std::vector<int>(size(), 0);
  }
  // Number of float32 elements that make `chunks` chunks of an allreduce.
  int64_t Elements(int64_t chunks) const { return chunks * chunk_bytes_ / 4; }

  // For all ranks, or for some. To be called in the same order on all ranks.
  std::unique_ptr<Transport> NewTransport();
  std::unique_ptr<Transport> NewTransport(const std::vector<int>& ranks);
  // All have opened as many transports: of a set that this rank is not in.
  void SkipTransport() { ++next_slot_; }

 private:
  Backend* const backend_;
  int next_slot_;
  const int64_t chunk_bytes_;
  const bool shares_memory_;
};

// A collective of float32 under way.
class Call {
 public:
  // `in` is what this rank puts in; `out_count` elements come out.
  Call(std::vector<float> in, int64_t out_count);

  // Starts `batch`, with this call's memory as its one segment unless it has
  // some.
  void Start(Transport* transport, Batch batch);

  bool done() const { return done_; }
  const Status& status() const { return status_; }
  BatchId id() const { return id_; }
  std::vector<float>& in() { return in_; }
  std::vector<float>& out() { return out_; }
  // Called by done, if set.
  std::function<void()> then;

 private:
  std::vector<float> in_, out_;
  BatchId id_ = 0;
  bool done_ = false;
  Status status_ = Internal("not done");
};

// Calls Progress in turn until `met`. False when it is not within a minute.
bool Drive(std::initializer_list<Transport*> transports,
           const std::function<bool()>& met);
bool Drive(Transport* transport, const std::function<bool()>& met);

// An allreduce of `count` ones, run until done and checked: shows that the set
// is well, and that all ranks have come that far.
void CheckSetIsWell(Transport* transport, int64_t count = 1);

// Expectations that failed in this process since the last call.
int TakeFailures();

struct ContractCase {
  const char* name;
  void (*run)(ContractRank*);
};

// Numbers: transport_contract_numbers.cc. Averages:
// transport_contract_averages.cc. Lives: transport_contract_lives.cc. NaN and
// infinity: transport_contract_finite.cc. Verbs that divide rows:
// transport_contract_rows.cc. Several phases: transport_contract_phases.cc.
// Ranks that have joined: transport_contract_joined.cc.
// Adasum: transport_contract_adasum.cc. Rows with ids:
// transport_contract_sparse.cc, transport_contract_sparse_phases.cc. Results
// that nobody wants: transport_contract_dropped.cc. Some ranks of a set each:
// transport_contract_partners.cc. Small batches behind large ones:
// transport_contract_passing.cc.
std::vector<ContractCase> NumberCases();
std::vector<ContractCase> AverageCases();
std::vector<ContractCase> LifeCases();
std::vector<ContractCase> FiniteCases();
std::vector<ContractCase> RowCases();
std::vector<ContractCase> PhaseCases();
std::vector<ContractCase> JoinedCases();
std::vector<ContractCase> AdasumCases();
std::vector<ContractCase> SparseCases();
std::vector<ContractCase> SparsePhaseCases();
std::vector<ContractCase> DroppedCases();
std::vector<ContractCase> PartnerCases();
std::vector<ContractCase> PassingCases();
std::vector<ContractCase> ContractCases();
// Ids that a case may use.
inline constexpr int kSetsPerCase = 2;

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TRANSPORT_CONTRACT_H_
