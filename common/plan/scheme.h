#pragma once

#include "absl/strings/string_view.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Way in which the gradients of a layer travel in a round.
enum class Scheme {
  // "server": workers send dense gradients to the shards. The shards add them
  // up and send the result back. This is the parameter server.
  kServer,

  // "factor": workers send each other two matrices, the factors; the gradient
  // of the weight is their product. Zhang et al., "Poseidon", call this
  // sufficient factor broadcasting (SFB).
  kFactor,

  // "ring": a sum goes from host to host around a ring; each host adds the
  // dense gradients of its workers. This is ring all-reduce, as in Open MPI,
  // NCCL and Horovod.
  kRing,

  // "direct": each host sends the sum of its workers' dense gradients to every
  // other host. That takes one hop where a ring takes many, and moves more
  // bytes: it is the fastest way for small layers.
  kDirect,
};

// All schemes, with their names in flags, files and reports.
inline constexpr Named<Scheme> kSchemeNames[] = {{Scheme::kServer, "server"},
                                                 {Scheme::kFactor, "factor"},
                                                 {Scheme::kRing, "ring"},
                                                 {Scheme::kDirect, "direct"}};

inline constexpr Scheme kSchemes[] = {Scheme::kServer, Scheme::kFactor,
                                      Scheme::kRing, Scheme::kDirect};

// Returns the name of `scheme`, as --scheme takes it: "ring".
absl::string_view SchemeName(Scheme scheme);

// Returns the scheme that is called `name`. Errors: kInvalidArgument, with the
// name and the known names.
absl::StatusOr<Scheme> ParseScheme(absl::string_view name);

// Largest number of parameters of a layer that workers send to each other: a
// frame's offset has 32 bits. Servers get chunks, which are shorter.
inline constexpr int64_t kPeerParametersMax = int64_t{1} << 32;

// Largest number of parameters of a layer that goes directly. A worker keeps
// the gradients of all hosts, and larger layers are faster around a ring.
inline constexpr int64_t kDirectParametersMax = int64_t{1} << 20;

// True if the layer can travel by `scheme`. All layers support
// Scheme::kServer. The others need at most kPeerParametersMax parameters.
// Scheme::kFactor also needs LayerSpec::may_send_factors, and Scheme::kDirect
// at most kDirectParametersMax parameters.
bool SupportsScheme(const LayerSpec& layer, Scheme scheme);

// True if the servers aggregate the gradients of a layer with this scheme. With
// the other schemes, workers send gradients or factors to each other, and send
// the layer's parameters to the servers only after some rounds (Job::IsSaved).
constexpr bool UsesServers(Scheme scheme) { return scheme == Scheme::kServer; }

}  // namespace nereus
