#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/protocol/job.h"

namespace nereus {

// Meaning of a tensor of a shard's file: elements [first, last) of a layer's
// parameters, or of one array of its optimizer state.
struct TensorName {
  std::string layer;  // Name of the layer.
  // True if the tensor has all elements: then first and last are not part of
  // the name, and 0.
  bool whole = true;
  int64_t first = 0;  // First element.
  int64_t last = 0;   // Element after the last one.
  // Name of the array of state (StateNames); empty: parameters.
  std::string state;

  bool operator==(const TensorName&) const = default;
};

// Returns the names of the arrays of a layer's state, in order:
// OptimizerStateName for an optimizer of ours; "state0", "state1", ... for a
// caller's. REQUIRES: `state_arrays` is OptimizerStateCount in the first case.
std::vector<std::string> StateNames(OptimizerPlace place, UpdateRule rule,
                                    int state_arrays);

// Returns the name in a file: "fc6", "fc6.velocity", "fc6[524288:1048576]" and
// "fc6[524288:1048576].velocity".
//
// Different tensors have different names, whatever the layers' names are. So
// parts of a layer's name are escaped, as "%25" and so on: the characters "%",
// "[" and "]"; the "." of an ending that is a state's name (".velocity"); and
// the first "_" of the layer name "__metadata__".
std::string EncodeTensorName(const TensorName& name);

// Returns the meaning of a name. Errors: kInvalidArgument, EncodeTensorName
// gives no such name.
absl::StatusOr<TensorName> DecodeTensorName(absl::string_view text);

}  // namespace nereus
