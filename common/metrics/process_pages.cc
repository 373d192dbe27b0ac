#include "common/metrics/process_pages.h"

#include <utility>

#include "common/metrics/member_metrics.h"
#include "common/metrics/process_metrics.h"

namespace nereus {

ProcessPages::ProcessPages(std::optional<Role> role, Pages pages,
                           std::function<void(MetricList&)> add)
    : role_(role), pages_(std::move(pages)), add_(std::move(add)) {
  pages_["/metrics"] = [this] { return Metrics(); };
}

absl::Status ProcessPages::Listen(const ProcessAddress& address) {
  if (address.http_port == 0) return absl::OkStatus();
  server_ = NEREUS_TRY(
      HttpServer::Start(address.listen_host(), address.http_port, pages_));
  return absl::OkStatus();
}

void ProcessPages::Set(const Heartbeat& heartbeat) {
  MutexLock lock(&mu_);
  heartbeat_ = heartbeat;
}

HttpAnswer ProcessPages::Metrics() const {
  MetricList metrics;
  AddProcessMetrics(metrics);
  if (role_.has_value()) {
    Heartbeat heartbeat;
    {
      MutexLock lock(&mu_);
      heartbeat = heartbeat_;
    }
    AddMemberMetrics(*role_, heartbeat, metrics);
  }
  if (add_ != nullptr) add_(metrics);
  return {.type = MetricList::kType, .body = metrics.ToText()};
}

}  // namespace nereus
