#include "common/plan/scheme.h"

#include "common/base/status.h"

namespace nereus {

absl::string_view SchemeName(Scheme scheme) {
  return NameOf<kSchemeNames>(scheme);
}

absl::StatusOr<Scheme> ParseScheme(absl::string_view name) {
  return ParseName<kSchemeNames>("scheme", name);
}

bool SupportsScheme(const LayerSpec& layer, Scheme scheme) {
  if (UsesServers(scheme)) return true;
  if (layer.parameters > kPeerParametersMax) return false;
  switch (scheme) {
    case Scheme::kFactor:
      return layer.may_send_factors();
    case Scheme::kDirect:
      return layer.parameters <= kDirectParametersMax;
    default:
      return true;
  }
}

}  // namespace nereus
