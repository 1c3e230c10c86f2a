// SPDX-License-Identifier: Apache-2.0
// Writes each sample at once, as a line of comma-separated values.
#include "core/autotune_report.h"

#include <utility>

#include "core/decimal.h"
#include "core/log.h"

namespace hvd {
namespace {

constexpr char kHeader[] =
    "sample,kind,fusion_bytes,chunk_bytes,batches_in_flight,steps,mb_per_s\n";

// Where a search ends below this part of the speed at its start, the machine
// itself has become slower.
constexpr double kLeast = 0.9;

const char* Name(Autotuner::Kind kind) {
  switch (kind) {
    case Autotuner::Kind::kWarmup:
      return "warmup";
    case Autotuner::Kind::kSample:
      return "sample";
    case Autotuner::Kind::kFinal:
      return "final";
  }
  return "";
}

std::string WithOneDigit(double number) { return DecimalText(number, 1); }

}  // namespace

Result<std::unique_ptr<AutotuneReport>> AutotuneReport::Open(
    const std::string& path) {
  auto report = std::make_unique<AutotuneReport>();
  if (!path.empty()) {
    auto file = OutputFile::Open("HVD_AUTOTUNE_LOG", path,
                                 OutputFile::Links::kFollowed);
    if (!file.ok()) return file.status();
    report->file_ = std::move(file.value());
  }
  report->Write(kHeader);
  return report;
}

void AutotuneReport::Add(const Autotuner::Sample& sample) {
  const Tuning& tuning = sample.tuning;
  Write(std::to_string(sample.number) + "," + Name(sample.kind) + "," +
        std::to_string(tuning.fusion_bytes) + "," +
        std::to_string(tuning.chunk_bytes) + "," +
        std::to_string(tuning.batches_in_flight) + "," +
        std::to_string(sample.rounds) + "," + WithOneDigit(sample.mb_per_s) +
        "\n");
  if (sample.kind == Autotuner::Kind::kWarmup) return;
  if (start_mb_per_s_ == 0) start_mb_per_s_ = sample.mb_per_s;
  if (sample.kind != Autotuner::Kind::kFinal) return;
  // The user has asked for it. Warnings are shown by default.
  Log(LogLevel::kWarning,
      "autotune has settled: " + WithOneDigit(sample.mb_per_s) +
          " MB/s on the wire, " + WithOneDigit(start_mb_per_s_) +
          " at the start. To begin with these values set " + Flags(tuning) +
          (sample.mb_per_s < kLeast * start_mb_per_s_
               ? ". It was faster at the start: tune again where the program "
                 "sends "
                 "the same in each step and the machine is quiet"
               : ""));
}

void AutotuneReport::Write(const std::string& line) {
  const Status status = file_.Write(line);
  if (status.ok()) return;
  Log(LogLevel::kWarning,
      "autotune's log ends here: " + status.message() + ".");
}

std::string AutotuneReport::Flags(const Tuning& tuning) const {
  std::string flags = "HVD_FUSION_BYTES=" + std::to_string(tuning.fusion_bytes);
  if (!chunk_knob_.empty()) {
    flags += " " + chunk_knob_ + "=" + std::to_string(tuning.chunk_bytes);
  }
  return flags +
         " HVD_BATCHES_IN_FLIGHT=" + std::to_string(tuning.batches_in_flight);
}

}  // namespace hvd
