#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/process/server.h"
#include "worker/public/client.h"

namespace nereus {

// Returns options of servers with the same plan in every run: by bytes,
// and the optimizer is the plain one of OptimizerOptions.
ServerOptions PlainServerOptions();

// Real servers in this process, on free loopback ports, for tests with real
// sockets.
class LocalCluster {
 public:
  // Starts `options.spec.shards` servers. `options` are those of shard 0, from
  // which the others' follow. Fails the test if a server does not start.
  explicit LocalCluster(ServerOptions options);
  ~LocalCluster();

  // Longest wait in a test: it ends a test that hangs, and is far longer than a
  // busy machine needs.
  static constexpr absl::Duration kPatience = absl::Minutes(2);

  // Address of the coordinator, as "host:port".
  std::string coordinator_address() const;
  Server& server(int shard) { return *servers_[shard]; }

  // Kills a server without a farewell, and starts another one in its place.
  // REQUIRES: shard > 0.
  void Replace(int shard);

  // Asks for the job's status until `is` returns true for it. False if that
  // takes more than kPatience.
  bool AwaitStatus(const std::function<bool(const JobStatus&)>& is) const;

  // Client options for this cluster, with kPatience as the time limits.
  ClientOptions client_options() const;

  // Runs `body` once per worker, each on a thread of its own. Returns the
  // workers' results.
  std::vector<absl::Status> RunWorkers(
      int workers, const std::function<absl::Status(int index)>& body);

  // Runs `body` in the way of RunWorkers, while every server ends as soon as
  // the job is over, as the program does. Returns the workers' results, then
  // the servers'.
  std::vector<absl::Status> RunWholeJob(
      int workers, const std::function<absl::Status(int index)>& body);

 private:
  void Start(int shard);

  ServerOptions options_;                         // Options of shard 0.
  std::vector<std::unique_ptr<Server>> servers_;  // Servers by shard.
};

}  // namespace nereus
