#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// A backup can take the place of its primary at any moment. When both have the
// same round open, their values are equal. No worker has a result that the
// current backup lacks. Otherwise the loss of the primary would take back a
// step that the worker has done.
class BackupLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "the backup has what has left the primary";
  }
  void Observe(const ClusterEvent& event) override;
};

}  // namespace nereus
