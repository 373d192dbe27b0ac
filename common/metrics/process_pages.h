#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/http_server.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/membership.h"

namespace nereus {

// The pages of a process at --http-port: /metrics, and perhaps others.
class ProcessPages {
 public:
  using Pages = std::map<std::string, HttpServer::Handler>;

  // `role`: role of this process in the job; nothing: it is no member. `pages`:
  // pages beside /metrics. `add`: adds metrics beside those of the process and
  // of the member; may be null. HTTP threads call `add` and the handlers, until
  // this is destroyed.
  explicit ProcessPages(std::optional<Role> role, Pages pages = {},
                        std::function<void(MetricList&)> add = nullptr);

  // Listens at `address`, unless its http_port is 0. Errors: those of
  // HttpServer::Start.
  absl::Status Listen(const ProcessAddress& address);

  // Notes what the member has done, for /metrics.
  void Set(const Heartbeat& heartbeat) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  HttpAnswer Metrics() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::optional<Role> role_;
  Pages pages_;
  const std::function<void(MetricList&)> add_;

  mutable Mutex mu_;
  Heartbeat heartbeat_ ABSL_GUARDED_BY(mu_);  // The last one.

  std::unique_ptr<HttpServer> server_;  // Last: its threads use the above.
};

}  // namespace nereus
