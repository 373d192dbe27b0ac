#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compute/optimizer.h"
#include "common/protocol/job.h"

namespace nereus {

// What a tensor of a shard's file is: elements [first, last) of a layer's
// parameters or of one array of its optimizer's state.
struct TensorName {
  std::string layer;
  bool whole = true;  // All elements: first and last are not in the name.
  int64_t first = 0;
  int64_t last = 0;
  std::string state;  // Empty: parameters; else one of StateNames'.

  bool operator==(const TensorName&) const = default;
};

// What the arrays of a layer's state are called, in order: OptimizerStateName's
// where the optimizer is ours, "state0", "state1", ... where it is the
// caller's. REQUIRES: `state_arrays` is OptimizerStateCount in the first case.
std::vector<std::string> StateNames(OptimizerPlace place, UpdateRule rule,
                                    int state_arrays);

// "fc6", "fc6.velocity", "fc6[524288:1048576]" and
// "fc6[524288:1048576].velocity".
//
// Different tensors have different names, whatever the layers are called: in a
// layer's name "%", "[" and "]", the "." before a state's name at its end, and
// the first "_" of "__metadata__", are written as "%25" and so on.
std::string EncodeTensorName(const TensorName& name);

// The reverse. Errors: kInvalidArgument: EncodeTensorName gives no such name.
absl::StatusOr<TensorName> DecodeTensorName(absl::string_view text);

}  // namespace nereus
