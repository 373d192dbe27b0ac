#pragma once

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Services at the control port of a coordinator that is not there yet, because
// it still reads its checkpoint. Without them, the port would refuse members
// and probes for as long as that takes, and a supervisor would take the process
// for a dead one. Thread-safe.
//
//   starting: a session stays open, and hears what it waits for (Tell); an
//             Admin call gets kUnavailable with this text
//   HandOver: sessions end, and their members open others; all calls go to the
//             services of the coordinator
class StartingService {
 public:
  StartingService();
  // REQUIRES: the control server that serves services() was shut down.
  ~StartingService();

  // Returns services for the control server. They live as long as this.
  std::vector<grpc::Service*> services();

  // Sets the text that sessions hear (Waiting). Those that are open hear it
  // every three seconds at most. Any thread may call this, also often.
  void Tell(const std::string& text);

  // Passes all later calls to the services of the coordinator. `services`:
  // CoordinatorService::services(). Not owned; they must outlive this.
  void HandOver(const std::vector<grpc::Service*>& services);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
