#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nereus {

class DrainCall;

// Open calls of Admin.Drain. Each waits until its member has left the job, so
// that the caller also hears of a member whose leaving ends the job.
//
// Not thread-safe: the owner holds its lock in each call. The owner must call
// Forget when it gets `cancelled`.
class DrainCalls {
 public:
  // `cancelled` is called if the caller no longer waits. It runs on a thread of
  // gRPC, without the owner's lock, and may come after the call was answered.
  explicit DrainCalls(std::function<void(DrainCall*)> cancelled)
      : cancelled_(std::move(cancelled)) {}

  // Opens a call that waits for `member`. Returns its reactor.
  grpc::ServerUnaryReactor* Open(std::string member);

  // Answers the calls whose member has left, by `has_left`.
  void Answer(const std::function<bool(const std::string&)>& has_left);

  // Ends all calls, and from now on each new call at once, with an error: the
  // process shuts down.
  void EndAll();

  // Ends a call, if it is still open.
  void Forget(DrainCall* call);

 private:
  const std::function<void(DrainCall*)> cancelled_;
  std::vector<DrainCall*> calls_;  // Each deletes itself after its answer.
  bool stopping_ = false;          // EndAll was called.
};

}  // namespace nereus
