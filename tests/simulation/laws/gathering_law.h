#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// All workers that gather together get the same values. If the whole job goes
// back, the workers that go back gather again; a worker that the coordinator
// has given up stays in its epoch, and gets the values of that time. After a
// worker's first step its own value is among them.
class GatheringLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "workers that gather get the same values";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  // Epochs in which the whole job has gone back.
  std::set<uint64_t> returns_ = {0};
  // Values that the first worker got, by gathering and by the worker's last
  // return.
  std::map<std::pair<uint64_t, GatheringId>, std::vector<std::string>> values_;
};

}  // namespace nereus
