#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "server/process/server.h"
#include "worker/public/client.h"

namespace nereus {

// Returns server options that give the same plan in every run: the planner
// compares bytes, not times. The optimizer has the default OptimizerOptions.
ServerOptions PlainServerOptions();

// Real servers in this process, at free ports of the loopback interface. The
// test starts the workers.
class LocalCluster {
 public:
  // Starts `options.spec.shards` servers. `options` are the options of shard 0;
  // the other servers get them with their own shard and the address of the
  // coordinator. Ends the process if a server does not start.
  explicit LocalCluster(ServerOptions options);
  ~LocalCluster();

  // Longest wait in a test. It ends a test that hangs, and is far longer than a
  // test takes on a busy machine.
  static constexpr absl::Duration kPatience = absl::Minutes(2);

  // Address of the coordinator, as "host:port".
  std::string coordinator_address() const;
  Server& server(int shard) { return *servers_[shard]; }

  // Destroys a server whatever the state of the job, and starts another one in
  // its place. REQUIRES: shard > 0.
  void Replace(int shard);

  // Asks for the job's status until `is` returns true for it. Returns false if
  // that takes more than kPatience.
  bool AwaitStatus(const std::function<bool(const JobStatus&)>& is) const;

  // Returns client options for this cluster, with kPatience as time limits.
  ClientOptions client_options() const;
  // Returns those of a client that plays a host of its own. With equal options
  // all clients are on one host.
  ClientOptions client_options_on(int host) const;

  // Runs `body` once per worker, each on a thread of its own. Returns the
  // workers' results.
  std::vector<absl::Status> RunWorkers(
      int workers, const std::function<absl::Status(int index)>& body);

 private:
  void Start(int shard);

  ServerOptions options_;                         // Options of shard 0.
  std::vector<std::unique_ptr<Server>> servers_;  // Servers by shard.
};

}  // namespace nereus
