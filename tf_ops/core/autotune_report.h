// SPDX-License-Identifier: Apache-2.0
// AutotuneReport: what people see of autotune: a CSV file and one line.
#ifndef HVD_CORE_AUTOTUNE_REPORT_H_
#define HVD_CORE_AUTOTUNE_REPORT_H_

#include <fstream>
#include <memory>
#include <string>

#include "core/autotuner.h"
#include "core/status.h"

namespace hvd {

// Exists on the rank that decides. One thread at a time.
class AutotuneReport {
 public:
  // Replaces the file at `path`; "": there is to be none. Not Ok, naming the
  // path and the remedy, where it cannot be written.
  [[nodiscard]] static Result<std::unique_ptr<AutotuneReport>> Open(
      const std::string& path);

  // The variable that sets the bytes of a piece; "": none does.
  void set_piece_knob(const std::string& knob) { piece_knob_ = knob; }

  // A line of the file; for the last sample also the log line with what to
  // set to begin with its values.
  void Add(const Autotuner::Sample& sample);

 private:
  void Write(const std::string& line);
  // "HVD_FUSION_BYTES=... ..."
  std::string Flags(const Tuning& tuning) const;

  std::ofstream file_;  // closed: there is none, or it failed
  std::string piece_knob_;
  double start_mb_per_s_ = 0;  // 0: not measured yet
};

}  // namespace hvd

#endif  // HVD_CORE_AUTOTUNE_REPORT_H_
