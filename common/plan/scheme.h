#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// How a layer's rounds are carried.
enum class Scheme {
  // "server": dense gradients go to the shards, which send back the result.
  kServer,

  // "factor": the workers send each other the two matrices whose product is the
  // weight gradient. Poseidon's sufficient factor broadcasting (SFB).
  kFactor,

  // "ring": the workers add up and hand around dense gradients, each with the
  // one after it. All-reduce as Open MPI, NCCL and Horovod do it.
  kRing,
};

inline constexpr Scheme kSchemes[] = {Scheme::kServer, Scheme::kFactor,
                                      Scheme::kRing};

absl::string_view SchemeName(Scheme scheme);

// Errors: kInvalidArgument, with the name and the known ones.
absl::StatusOr<Scheme> ParseScheme(absl::string_view name);

// Whether the layer can travel that way. Only a fully connected layer's
// gradient has factors (Poseidon, algorithm 1); the other ways take everything.
bool SupportsScheme(const LayerSpec& layer, Scheme scheme);

// True if the servers aggregate the gradients of a layer. Otherwise its rounds
// go from worker to worker, and the servers have the layer as of the start and
// of checkpoints only.
constexpr bool UsesServers(Scheme scheme) { return scheme == Scheme::kServer; }

}  // namespace nereus
