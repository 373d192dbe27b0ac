#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 6, bounded memory: the bytes that a server holds are at most linear in
// the values of its chunks. These are the chunks of which the server is the
// primary or the backup. A server that never frees a round or a frame breaks
// the law.
class BoundedMemoryLaw final : public Law {
 public:
  absl::string_view name() const override { return "memory is bounded"; }
  void Observe(const ClusterEvent& event) override;

  // Returns how many bytes server `server` may hold.
  static int64_t BytesMax(const Job& job, int server);
};

}  // namespace nereus
