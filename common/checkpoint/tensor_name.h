#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/protocol/job.h"

namespace nereus {

// Values that a tensor in a shard's file has: elements [first, last) of a
// layer's parameters, or of one array of the layer's optimizer state.
struct TensorName {
  std::string layer;  // Name of the layer.
  // True if the tensor has all elements of the layer. Then `first` and `last`
  // are 0 and are not part of the tensor's name.
  bool whole = true;
  int64_t first = 0;  // First element.
  int64_t last = 0;   // Element after the last one.
  // Name of the array of state (StateNames); empty: parameters.
  std::string state;

  bool operator==(const TensorName&) const = default;
};

// Returns the names of the arrays of a layer's state, in order. With
// OptimizerPlace::kServer the names are those of OptimizerStateName. If the
// callers run the optimizer, the names are "state0", "state1" and so on.
// REQUIRES: with kServer, `state_arrays` is OptimizerStateCount(rule).
std::vector<std::string> StateNames(OptimizerPlace place, UpdateRule rule,
                                    int state_arrays);

// Returns the name of a tensor in a file, for example "fc6", "fc6.velocity",
// "fc6[524288:1048576]" or "fc6[524288:1048576].velocity".
//
// Two different tensors must have different names, whatever names the layers
// have. So some characters of a layer's name are escaped, for example "%" as
// "%25": each "%", "[" and "]"; the "." before a state's name at the end
// (".velocity"); and the first "_" if the layer's name is "__metadata__".
std::string EncodeTensorName(const TensorName& name);

// Returns the TensorName for which EncodeTensorName returns `text`. Errors:
// kInvalidArgument, there is none.
absl::StatusOr<TensorName> DecodeTensorName(absl::string_view text);

}  // namespace nereus
