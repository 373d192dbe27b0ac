#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/messages/worker_event.h"
#include "server/admin/process.h"

namespace nereus {

// Workers of a job on this computer, as LocalJob sees them: the program that
// they run, and the meaning of its output and of its exit. LocalJob calls all
// methods from one thread. `worker` is the index of a worker, from 0 on.
class LocalWorkers {
 public:
  virtual ~LocalWorkers() = default;

  // True if the exits of workers decide about the job. After code 0, the worker
  // is done. After SIGKILL (LocalProcess::was_killed_from_outside) or the code
  // kExitAgain, the worker is started again while restarts are left. Any other
  // end makes the job fail, because the program would end in the same way
  // again.
  //
  // False: a worker is done when it has reported its result. A worker that ends
  // before its result is started again while restarts are left. A job without
  // restarts gives up a worker that is killed while others train on: it goes on
  // without that worker. A job that is finished gives up each worker that fails
  // afterwards.
  virtual bool exit_decides() const = 0;

  // Returns the program of a worker. `coordinator` is HOST:PORT of the
  // coordinator's control port.
  virtual ProcessOptions Program(int worker,
                                 const std::string& coordinator) const = 0;

  // Receives a line of standard output. Returns true if the line is the result
  // of the worker. Errors: kInvalidArgument, the line is not understood.
  virtual absl::StatusOr<bool> OnOutputLine(int worker,
                                            const std::string& line) = 0;

  // Shows a line of standard error and returns true. Or returns false: then
  // LocalJob handles the line like a line of a server. LocalJob keeps the last
  // lines to explain a failure, and shows those that matter (IsLineShown).
  virtual bool ShowErrorLine(int worker, const std::string& line) = 0;

  // Receives the end of a worker's process.
  virtual void OnExit(int worker, const ProcessExit& exit) = 0;

  // Forgets the progress of a worker that is given up.
  virtual void OnGivenUp(int worker) = 0;

  // Returns one line about the progress of the job. Empty: there is none.
  virtual std::string Progress() const = 0;
  // True if a worker that is not given up has reported progress.
  virtual bool has_progress() const = 0;

  // Returns the results of the workers, and forgets them. Empty: the program
  // reports none.
  virtual std::vector<WorkerResult> TakeResults() = 0;
};

}  // namespace nereus
