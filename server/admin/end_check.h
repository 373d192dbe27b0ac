#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "server/admin/local_process.h"

namespace nereus {

// Asks the coordinator about the ends of programs (LocalWorkers::exit_decides),
// because an exit code alone does not tell:
//
//   code 0, but the program has not left the job   --> mistake
//   an error of a program that was started again,
//   when all workers had left the job              --> is_late
//   a program that was started again, and has not
//   joined when the job is finished                --> is_late
//
// The first program has lost its part of the training. The others were started
// in the place of a worker that died as the job ended, and there was nothing
// left to do. Used by one thread.
class EndCheck {
 public:
  // Returns the status of the job at a coordinator; FetchJobStatus in a
  // program, another function in a test.
  using Fetch =
      std::function<absl::StatusOr<JobStatus>(const std::string& coordinator)>;

  explicit EndCheck(Fetch fetch) : fetch_(std::move(fetch)) {}

  // Notes a line of a server's log: the coordinator logs which worker leaves
  // early, and which one it removes. The second also happens in the last second
  // of a job, when it is too late to ask.
  static void NoteLine(absl::Span<LocalProcess> processes,
                       absl::string_view line);

  // Looks at programs that have ended since the last call, and at those that
  // were started again and have not joined yet. Blocks while the coordinator is
  // asked, which is at most once. `is_finished`: the coordinator has ended,
  // because the job is finished.
  void Look(absl::Span<LocalProcess> processes, const std::string& coordinator,
            bool is_finished, absl::Time now);

 private:
  // Asks the coordinator, or returns its earlier answer of the same Look.
  using Ask = absl::FunctionRef<const absl::StatusOr<JobStatus>&()>;

  static void LookAtRestart(LocalProcess& child, Ask ask, bool is_finished,
                            absl::Time now);
  static void LookAtGoodEnd(LocalProcess& child, Ask ask, absl::Time now);
  static void LookAtError(LocalProcess& child, Ask ask);

  const Fetch fetch_;
  // Last time at which Look looked at programs that were started again.
  absl::Time restarts_at_ = absl::InfinitePast();
};

}  // namespace nereus
