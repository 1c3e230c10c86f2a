// SPDX-License-Identifier: Apache-2.0
// AutotuneReport: shows people what autotune does, in a CSV file and one line.
#ifndef HVD_CORE_AUTOTUNE_REPORT_H_
#define HVD_CORE_AUTOTUNE_REPORT_H_

#include <memory>
#include <string>

#include "core/control/autotuner.h"
#include "core/output_file.h"
#include "core/status.h"

namespace hvd {

// Only the rank that decides has one. One thread at a time.
class AutotuneReport {
 public:
  // Replaces the file at `path`. An empty path means no file. If the file
  // cannot be written, or another job writes it, the error names the path and
  // the remedy.
  [[nodiscard]] static Result<std::unique_ptr<AutotuneReport>> Open(
      const std::string& path);

  // The variable that sets the bytes of a chunk. Empty: no variable does.
  void set_chunk_knob(const std::string& knob) { chunk_knob_ = knob; }

  // Writes a line of the file. For the last sample it also logs which variables
  // to set, so that a later job begins with its values.
  void Add(const Autotuner::Sample& sample);

 private:
  void Write(const std::string& line);
  // Such as "HVD_FUSION_BYTES=... ...".
  std::string Flags(const Tuning& tuning) const;

  OutputFile file_;
  std::string chunk_knob_;
  double start_mb_per_s_ = 0;  // 0: not measured yet
};

}  // namespace hvd

#endif  // HVD_CORE_AUTOTUNE_REPORT_H_
