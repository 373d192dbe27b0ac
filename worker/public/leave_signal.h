#pragma once

namespace nereus {

// Lets a worker's program leave its job early when the process is asked to end
// (SIGTERM), so that the other workers need not find out that it is gone.
//
//   const LeaveSignal signal;  // After Client::Connect.
//   for (;;) {
//     const StepInfo step = NEREUS_TRY(client->BeginStep());
//     if (signal.is_set() || step.should_leave) {
//       NEREUS_TRY(client->LeaveEarly());
//       return signal.is_set() ? LeaveSignal::kExitCode : 0;
//     }
//     ...
//
// While an object exists, the first SIGTERM only sets is_set. If the process
// has not ended 9 seconds later, or gets another SIGTERM, it ends at once, with
// kExitCode, and its log says so: so it ends within the 10 seconds that `docker
// stop` grants. Uses alarm(2) and SIGALRM. The first constructor starts a
// thread that writes this line of the log; the thread lives as long as the
// process. The destructor restores the handlers of before. At most one object
// exists at a time. Thread-safe.
class LeaveSignal {
 public:
  // Exit code of a process that SIGTERM ended: 128 + 15.
  static constexpr int kExitCode = 143;

  LeaveSignal();
  ~LeaveSignal();
  LeaveSignal(const LeaveSignal&) = delete;
  LeaveSignal& operator=(const LeaveSignal&) = delete;

  // True if the process has got a SIGTERM since the constructor.
  bool is_set() const;
};

}  // namespace nereus
