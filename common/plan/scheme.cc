#include "common/plan/scheme.h"

#include "absl/strings/escaping.h"
#include "common/base/status.h"

namespace nereus {

absl::string_view SchemeName(Scheme scheme) {
  switch (scheme) {
    case Scheme::kServer:
      return "server";
    case Scheme::kFactor:
      return "factor";
    case Scheme::kRing:
      return "ring";
  }
  return "unknown";
}

absl::StatusOr<Scheme> ParseScheme(absl::string_view name) {
  for (const Scheme scheme : kSchemes) {
    if (name == SchemeName(scheme)) return scheme;
  }
  return InvalidArgumentError("unknown scheme \"",
                              absl::CHexEscape(name.substr(0, 64)),
                              "\", known are server, factor, ring");
}

bool SupportsScheme(const LayerSpec& layer, Scheme scheme) {
  return scheme != Scheme::kFactor || layer.has_factors;
}

}  // namespace nereus
