#include "common/metrics/process_pages.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/version.h"

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

namespace {

// Time at which this program was loaded, which is close to the start of its
// process.
const absl::Time kStartedAt = absl::Now();

// Returns the bytes of memory in use, or 0 if the system does not tell.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns the number of open descriptors, or 0 if the system does not tell.
int64_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return 0;
  return std::distance(begin(files), end(files));
}

}  // namespace

void AddProcessMetrics(MetricList& metrics) {
  metrics.AddGauge(
      "nereus_build_info", "Version of this process", 1,
      {{"version", kVersion}, {"protocol", absl::StrCat(kProtocolVersion)}});
  metrics.AddCounter("nereus_log_lines_dropped_total",
                     "Log lines that were dropped, because the log's reader "
                     "stood still or was too slow, or a write failed",
                     static_cast<double>(DroppedLogLines()));
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    metrics.AddCounter(
        "process_cpu_seconds_total", "Time of the CPUs",
        absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                              absl::DurationFromTimeval(usage.ru_stime)));
  }
  if (const int64_t bytes = ResidentBytes(); bytes > 0) {
    metrics.AddGauge("process_resident_memory_bytes", "Memory in use",
                     static_cast<double>(bytes));
  }
  if (const int64_t open = OpenDescriptors(); open > 0) {
    metrics.AddGauge("process_open_fds", "Open descriptors",
                     static_cast<double>(open));
  }
  metrics.AddGauge("process_start_time_seconds",
                   "Start of the process, seconds since 1970",
                   absl::ToDoubleSeconds(kStartedAt - absl::UnixEpoch()));
}

}  // namespace nereus
