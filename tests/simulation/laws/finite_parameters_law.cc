#include "tests/simulation/laws/finite_parameters_law.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "common/compute/vectors.h"

namespace nereus {

void FiniteParametersLaw::Observe(const ClusterEvent& event) {
  const auto* done = std::get_if<RoundDone>(&event);
  if (done == nullptr) return;
  const absl::Span<const float> values = done->parameters.values;
  const int64_t index = FindNotFinite(values.data(), values.size());
  if (index < 0) return;
  Breach(PlaceOf(done->place),
         absl::StrCat("element ", index, " of the parameters is ",
                      values[static_cast<size_t>(index)]));
}

}  // namespace nereus
