#pragma once

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Admin and Coordinator services of a server that is not the coordinator. They
// refuse every call. The error names the address of the coordinator, so that a
// caller sees which address to call instead. Thread-safe.
class RedirectService {
 public:
  // `coordinator_address`: "host:port" of the coordinator's control port.
  explicit RedirectService(const std::string& coordinator_address);
  ~RedirectService();

  // Returns services for the control server. They live as long as this.
  std::vector<grpc::Service*> services();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
