#pragma once

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Way in which the gradients of a layer travel in a round.
enum class Scheme {
  // "server": workers send dense gradients to the shards, which add them up and
  // send the result back. Parameter server.
  kServer,

  // "factor": workers send each other two matrices; the weight gradient is
  // their product. Zhang et al., "Poseidon": sufficient factor broadcasting
  // (SFB).
  kFactor,

  // "ring": workers add up dense gradients and hand them around, each to the
  // next one. All-reduce, as in Open MPI, NCCL and Horovod.
  kRing,
};

// All schemes.
inline constexpr Scheme kSchemes[] = {Scheme::kServer, Scheme::kFactor,
                                      Scheme::kRing};

// Returns the value of --scheme: "ring".
absl::string_view SchemeName(Scheme scheme);

// Returns the scheme of that name. Errors: kInvalidArgument, with the name and
// the known ones.
absl::StatusOr<Scheme> ParseScheme(absl::string_view name);

// True if the layer can travel by `scheme`. Only the gradient of a fully
// connected layer has factors (Poseidon, algorithm 1); all layers can use the
// other schemes.
bool SupportsScheme(const LayerSpec& layer, Scheme scheme);

// True if the servers aggregate the gradients of a layer with this scheme.
// Otherwise its rounds go from worker to worker, and the servers have the layer
// as of the base round and of checkpoints only.
constexpr bool UsesServers(Scheme scheme) { return scheme == Scheme::kServer; }

}  // namespace nereus
