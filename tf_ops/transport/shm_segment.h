// SPDX-License-Identifier: Apache-2.0
// ShmSegment: memory that the processes of one host share.
#ifndef HVD_TRANSPORT_SHM_SEGMENT_H_
#define HVD_TRANSPORT_SHM_SEGMENT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"

namespace hvd {

// A mapping, undone by the destructor. The name is random, the mode 0600; once
// all have attached it is unlinked, and the memory goes with the last of them,
// however they end.
class ShmSegment {
 public:
  // Zeros. All of its pages exist: there is no signal later for a full
  // /dev/shm.
  static Result<std::shared_ptr<ShmSegment>> Create(size_t bytes);
  // Refuses what another user made, and what has another size.
  static Result<std::shared_ptr<ShmSegment>> Attach(const std::string& name,
                                                    size_t bytes);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  // Takes the name away, if this process gave it. The destructor does it too.
  void Unlink();

 private:
  ShmSegment(std::string name, std::byte* data, size_t bytes, bool is_creator)
      : name_(std::move(name)),
        data_(data),
        bytes_(bytes),
        is_linked_(is_creator) {}

  const std::string name_;
  std::byte* const data_;
  const size_t bytes_;
  bool is_linked_;  // and this process's to unlink
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SEGMENT_H_
