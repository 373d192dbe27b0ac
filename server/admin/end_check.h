#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "server/admin/local_process.h"

namespace nereus {

// Asks the coordinator about workers that have ended, because an exit code
// alone does not tell:
//
//   code 0 of a reference worker without a result,
//   which has left the job early                   --> kLeftEarly
//   code 0 of a program that has not left the job  --> mistake
//   an error of a program that was started again,
//   when all workers had left the job              --> is_late
//   a program that was started again, and has not
//   joined when the job is finished                --> is_late
//
// The last three are for programs whose exits decide
// (LocalWorkers::exit_decides). The first of them has lost its part of the
// training. The others were started in the place of a worker that died as the
// job ended, and there was nothing left to do. Used by one thread.
class EndCheck {
 public:
  // Returns the status of the job, at a coordinator that runs, or the last one
  // of a coordinator that has ended. Another function in a test.
  using Fetch =
      std::function<absl::StatusOr<JobStatus>(const std::string& coordinator)>;

  EndCheck(bool exit_decides, Fetch fetch)
      : exit_decides_(exit_decides), fetch_(std::move(fetch)) {}

  // Looks at workers that have ended since the last call, and at programs that
  // were started again and have not joined yet. Blocks while the coordinator is
  // asked, which is at most once. `is_finished`: the coordinator has ended,
  // because the job is finished.
  void Look(absl::Span<LocalProcess> processes, const std::string& coordinator,
            bool is_finished, absl::Time now);

  // True once an answer has said that the job has begun.
  bool has_begun() const { return has_begun_; }

 private:
  // Asks the coordinator, or returns its earlier answer of the same Look.
  using Ask = absl::FunctionRef<const absl::StatusOr<JobStatus>&()>;

  static void LookAtRestart(LocalProcess& child, Ask ask, bool is_finished,
                            absl::Time now);
  static void LookForEarlyEnd(LocalProcess& child, Ask ask);
  static void LookAtGoodEnd(LocalProcess& child, Ask ask, bool is_finished,
                            absl::Time now);
  static void LookAtError(LocalProcess& child, Ask ask);

  const bool exit_decides_;
  const Fetch fetch_;
  bool has_begun_ = false;
  int64_t ends_ = 0;  // Number of processes that had ended at the last Look.
  // Last time at which Look asked about what may change without an exit.
  absl::Time asked_at_ = absl::InfinitePast();
};

}  // namespace nereus
