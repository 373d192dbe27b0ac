#pragma once

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Admin and Coordinator services of a shard that does not coordinate. They
// refuse every call with the address of the coordinator, so that an operator or
// member that called the wrong server sees which one to call. Thread-safe.
class RedirectService {
 public:
  explicit RedirectService(const std::string& coordinator_address);
  ~RedirectService();

  // Returns services for the control server. They live as long as this.
  std::vector<grpc::Service*> services();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
