#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"
#include "server/admin/simulate/simulated_iteration.h"

namespace nereus {

// Judgement of an iteration: what limits its speed (the network, computing or
// late workers), and flags that would shorten it. The texts of `nereusctl plan`
// and `nereusctl simulate` begin with the diagnosis.
struct Diagnosis {
  // A flag that would make an iteration shorter.
  struct Advice {
    // Flag as typed: "--wire=bf16".
    std::string flag;
    // Seconds of an iteration that this flag alone saves.
    double saved_seconds = 0;
  };

  // Number of workers of the job.
  int64_t workers = 1;
  // Number of hosts that the workers share. 0: each worker has its own host.
  int64_t hosts = 0;
  // Seconds of one iteration.
  double iteration_seconds = 0;
  // Seconds of the iteration in which the busiest device computes.
  double compute_seconds = 0;
  // Seconds of an iteration if one worker trains alone. 0: not known.
  double single_node_seconds = 0;
  // Seconds that workers with a --delay add to the iteration.
  double delay_seconds = 0;
  // Flags that would shorten the iteration, ordered by savings, the largest one
  // first.
  std::vector<Advice> advice;
};

// Returns the flags that would each save more than a twentieth of the
// iteration. Timeline predicts the times with and without the flag. Empty if no
// plan can be made.
std::vector<Diagnosis::Advice> FindAdvice(const WhatIf& what_if);

// Adds `flag` to `advice`, in order of savings, if it saves more than a
// twentieth of an iteration. `without` and `with` are the times of an iteration
// without and with the flag.
void AddAdvice(const std::string& flag, absl::Duration without,
               absl::Duration with, std::vector<Diagnosis::Advice>& advice);

// Returns the diagnosis in one or two lines, each ended by '\n'.
std::string FormatDiagnosis(const Diagnosis& diagnosis);

// Returns {"limited_by": "network", "computing" or "late workers",
//          "advice": [{"flag", "saved_seconds"}]}.
nlohmann::ordered_json DiagnosisJson(const Diagnosis& diagnosis);

}  // namespace nereus
