#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// All workers that gather together get the same values, unless the whole job
// goes back between two of them. After a worker's first step its own value is
// among them.
class GatheringLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "workers that gather get the same values";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  // Values that the first worker got, by gathering.
  std::map<GatheringId, std::vector<std::string>> values_;
};

}  // namespace nereus
