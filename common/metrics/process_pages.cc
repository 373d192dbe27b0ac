#include "common/metrics/process_pages.h"

#include <utility>

#include "common/metrics/process_metrics.h"

namespace nereus {

ProcessPages::ProcessPages(Pages pages, std::function<void(MetricList&)> add)
    : pages_(std::move(pages)), add_(std::move(add)) {
  pages_["/metrics"] = [this] { return Metrics(); };
}

absl::Status ProcessPages::Listen(const ProcessAddress& address) {
  if (address.http_port == 0) return absl::OkStatus();
  server_ = NEREUS_TRY(
      HttpServer::Start(address.listen_host(), address.http_port, pages_));
  return absl::OkStatus();
}

void ProcessPages::Set(MetricList metrics) {
  MutexLock lock(&mu_);
  metrics_ = std::move(metrics);
}

HttpAnswer ProcessPages::Metrics() const {
  MetricList metrics;
  AddProcessMetrics(metrics);
  {
    MutexLock lock(&mu_);
    metrics.Append(metrics_);
  }
  if (add_ != nullptr) add_(metrics);
  return {.type = MetricList::kType, .body = metrics.ToText()};
}

}  // namespace nereus
