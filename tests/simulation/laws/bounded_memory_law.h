#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 6, bounded memory: what a server holds is at most linear in the values of
// the chunks that it is the primary or the backup of. A round that is never
// given up, or a frame that is kept for good, breaks it.
class BoundedMemoryLaw final : public Law {
 public:
  absl::string_view name() const override { return "memory is bounded"; }
  void Observe(const ClusterEvent& event) override;

  // Returns how many bytes server `server` may hold.
  static int64_t BytesMax(const Job& job, int server);
};

}  // namespace nereus
