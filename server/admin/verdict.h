#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"
#include "server/admin/simulate/simulated_iteration.h"

namespace nereus {

// What limits an iteration, by how much, and what would help: the first lines
// of what `nereusctl plan` and `nereusctl simulate` say.
struct Verdict {
  // A flag that would make an iteration shorter.
  struct Advice {
    std::string flag;
    double saved_seconds = 0;
  };

  int64_t workers = 1;
  double iteration_seconds = 0;
  // Of that, what the busiest device computes.
  double compute_seconds = 0;
  // An iteration of one machine alone. 0: nobody has said what it computes.
  double single_node_seconds = 0;
  // Of the iteration, what it waits for workers that are late (--delay).
  double delay_seconds = 0;
  std::vector<Advice> advice;  // The largest saving first.
};

// Flags that would save at least a twentieth of an iteration each, as Timeline
// has it. None if no plan can be made.
std::vector<Verdict::Advice> FindAdvice(const WhatIf& what_if);

// Adds a flag that makes an iteration shorter, if by a twentieth of it.
void AddAdvice(const std::string& flag, absl::Duration without,
               absl::Duration with, std::vector<Verdict::Advice>& advice);

// Two lines at most, each ended by '\n'.
std::string FormatVerdict(const Verdict& verdict);

// {"limited_by": "network", "computing" or "late workers",
//  "advice": [{"flag", "saved_seconds"}]}
nlohmann::ordered_json VerdictJson(const Verdict& verdict);

}  // namespace nereus
