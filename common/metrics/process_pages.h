#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/http_server.h"
#include "common/metrics/metric_list.h"

namespace nereus {

// Adds what every process has: its version, the number of log lines that it has
// dropped, and Prometheus' standard metrics of a process
// (process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
// process_start_time_seconds). Leaves out what the system does not tell.
void AddProcessMetrics(MetricList& metrics);

// The pages of a process at --http-port: /metrics, and perhaps others.
class ProcessPages {
 public:
  using Pages = std::map<std::string, HttpServer::Handler>;

  // `pages`: pages beside /metrics. `add`: adds metrics beside those of the
  // process and those of Set; may be null. HTTP threads call `add` and the
  // handlers, until this is destroyed.
  explicit ProcessPages(Pages pages = {},
                        std::function<void(MetricList&)> add = nullptr);

  // Listens at `address`, unless its http_port is 0. Errors: those of
  // HttpServer::Start.
  absl::Status Listen(const ProcessAddress& address);

  // Sets what /metrics shows beside the metrics of the process and of `add`,
  // until the next call.
  void Set(MetricList metrics) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  HttpAnswer Metrics() const ABSL_LOCKS_EXCLUDED(mu_);

  Pages pages_;
  const std::function<void(MetricList&)> add_;

  mutable Mutex mu_;
  MetricList metrics_ ABSL_GUARDED_BY(mu_);  // The last ones of Set.

  std::unique_ptr<HttpServer> server_;  // Last: its threads use the above.
};

}  // namespace nereus
