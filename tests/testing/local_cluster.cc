#include "tests/testing/local_cluster.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/rpc/admin_client.h"

namespace nereus {

ServerOptions PlainServerOptions() {
  ServerOptions options;
  options.spec.rules = PlanRules();
  options.spec.options = JobOptions();
  return options;
}

LocalCluster::LocalCluster(ServerOptions options)
    : options_(std::move(options)) {
  servers_.resize(options_.spec.shards);
  for (int shard = 0; shard < options_.spec.shards; ++shard) Start(shard);
}

void LocalCluster::Start(int shard) {
  ServerOptions options = options_;
  options.shard = shard;
  if (shard > 0) options.coordinator_address = coordinator_address();
  auto server = Server::Start(options);
  NEREUS_CHECK(server.ok()) << server.status();
  servers_[shard] = *std::move(server);
}

void LocalCluster::Replace(int shard) {
  servers_[shard].reset();
  Start(shard);
}

LocalCluster::~LocalCluster() {
  // Destroys the coordinator last, because the other servers report to it.
  while (!servers_.empty()) servers_.pop_back();
}

std::string LocalCluster::coordinator_address() const {
  return absl::StrCat("127.0.0.1:", servers_.front()->control_port());
}

ClientOptions LocalCluster::client_options() const {
  ClientOptions options;
  options.optimizer = std::nullopt;  // Workers accept either place.
  options.scales_loss = true;
  options.coordinator_address = coordinator_address();
  options.connect_timeout = kPatience;
  options.round_timeout = kPatience;
  return options;
}

ClientOptions LocalCluster::client_options_on(int host) const {
  ClientOptions options = client_options();
  options.node = absl::StrCat("host-", host);
  return options;
}

bool LocalCluster::AwaitStatus(
    const std::function<bool(const JobStatus&)>& is) const {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    const auto status = FetchJobStatus(coordinator_address(), kPatience);
    if (status.ok() && is(*status)) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

std::vector<absl::Status> LocalCluster::RunWorkers(
    int workers, const std::function<absl::Status(int index)>& body) {
  std::vector<absl::Status> results(workers);
  std::vector<std::thread> threads;
  for (int index = 0; index < workers; ++index) {
    threads.emplace_back([&, index] { results[index] = body(index); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace nereus
