// SPDX-License-Identifier: Apache-2.0
// ShmSegment: memory that the processes of one host share.
#ifndef HVD_TRANSPORT_SHM_SHM_SEGMENT_H_
#define HVD_TRANSPORT_SHM_SHM_SEGMENT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"

namespace hvd {

// A mapping, undone by the destructor, of memory that only this user may open.
// Others attach by name(); once all have, Unlink takes that away, and the
// memory goes with the last of them, however they end.
class ShmSegment {
 public:
  // Zeros. All of its pages exist: there is no signal later for a full
  // /dev/shm. It has no place in the file system, so that nothing stays behind
  // even if this process is killed before Unlink; its name tells where in /proc
  // the processes that see this one there can open it.
  static Result<std::shared_ptr<ShmSegment>> Create(size_t bytes);
  // The same in /dev/shm by a random name, for those who cannot.
  static Result<std::shared_ptr<ShmSegment>> CreateNamed(size_t bytes);
  // Refuses what another user made, what has another size, and what is not the
  // segment of that name: process numbers may mean another process here.
  static Result<std::shared_ptr<ShmSegment>> Attach(const std::string& name,
                                                    size_t bytes);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // For Attach.
  const std::string& name() const { return name_; }

  // Nobody can attach any more. Only the process that made it does something
  // here, and the destructor does it too.
  void Unlink();

 private:
  ShmSegment(std::string name, std::byte* data, size_t bytes)
      : name_(std::move(name)), data_(data), bytes_(bytes) {}

  const std::string name_;
  std::byte* const data_;
  const size_t bytes_;
  // Until Unlink, in the process that made it: what others open, or its name in
  // /dev/shm.
  int fd_ = -1;
  std::string linked_as_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_SHM_SHM_SEGMENT_H_
