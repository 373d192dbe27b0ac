#pragma once

#include <optional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/admin/local_process.h"
#include "server/admin/progress_display.h"

namespace nereus {

// Tells the user which workers end long before the other workers, or long after
// the job. Otherwise the user could not see why the job stands still. Each line
// is written once. Used by one thread.
class EndNotices {
 public:
  // `exit_decides`: LocalWorkers::exit_decides. `display` isn't owned and must
  // outlive this.
  EndNotices(bool exit_decides, ProgressDisplay* display)
      : exit_decides_(exit_decides), display_(display) {}

  // Looks at all processes of the job. `finished_at`: time at which the job
  // finished; absent: it has not.
  void Tell(absl::Span<LocalProcess> processes,
            std::optional<absl::Time> finished_at, absl::Time now);

 private:
  // If exits decide, tells of each worker that has ended with code 0 while
  // others still run 3 s later.
  void TellOfEarlyEnds(absl::Span<LocalProcess> processes, absl::Time now);
  // Tells which workers still run 3 s after the job has finished.
  void TellOfLateEnds(absl::Span<const LocalProcess> processes,
                      absl::Time finished_at, absl::Time now);

  const bool exit_decides_;
  ProgressDisplay* const display_;
  bool is_late_told_ = false;  // True once TellOfLateEnds has looked.
};

}  // namespace nereus
