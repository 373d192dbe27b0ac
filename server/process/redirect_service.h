#pragma once

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// The Admin service of a shard that does not coordinate: tells an operator whom
// to ask. Thread-safe.
class RedirectService {
 public:
  explicit RedirectService(const std::string& coordinator_address);
  ~RedirectService();

  // For the control server; valid as long as this is.
  std::vector<grpc::Service*> services();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
