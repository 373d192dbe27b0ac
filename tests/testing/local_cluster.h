#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/process/server.h"
#include "worker/public/client.h"

namespace nereus {

// Servers of a job that plans by bytes, with the plain optimizer of
// OptimizerOptions: the same plan in every run.
ServerOptions PlainServerOptions();

// Real servers in this process, on free loopback ports, for tests with real
// sockets.
class LocalCluster {
 public:
  // Starts `options.spec.shards` servers; `options` is shard 0's, the others
  // get what is theirs. Fails the test if one does not start.
  explicit LocalCluster(ServerOptions options);
  ~LocalCluster();

  // "host:port" of the coordinator.
  std::string coordinator_address() const;
  Server& server(int shard) { return *servers_[shard]; }

  // Another server comes in the place of one that has gone without a word.
  // REQUIRES: shard > 0.
  void Replace(int shard);

  // Client options for this cluster, with time limits that suit a test.
  ClientOptions client_options() const;

  // Runs `body` once per worker, each on a thread of its own, and returns what
  // each returned.
  std::vector<absl::Status> RunWorkers(
      int workers, const std::function<absl::Status(int index)>& body);

  // The same, while every server does what the program does: goes as soon as
  // the job is over. Returns the workers' results, then the servers'.
  std::vector<absl::Status> RunWholeJob(
      int workers, const std::function<absl::Status(int index)>& body);

 private:
  void Start(int shard);

  ServerOptions options_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace nereus
