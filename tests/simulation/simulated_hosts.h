#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/network/simulated_network.h"
#include "common/protocol/membership.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// Hosts of a simulated cluster: chooses a host for each process, and makes the
// process's host claim.
//
//   server of a shard            host that Places gives the shard, also when
//                                the server is started again
//   first workers                hosts of Places, in order
//   worker with the name of an
//   earlier worker               host of the earlier worker
//   other workers that join      each host in turn, then a host of their own
//
// All hosts with odd numbers claim the same --node, so that only their machines
// tell them apart. A worker on a host of its own does not know its machine.
//
// If Places names no hosts, each process has a node of its own and makes no
// host claim. For one thread, like the rest of the cluster. Bounded by the
// number of processes.
class SimulatedHosts {
 public:
  // REQUIRES: the hosts of `options` have options.workers workers together, or
  // there are no hosts.
  explicit SimulatedHosts(const SimulatedClusterOptions& options);

  // True if processes may share hosts.
  bool any() const { return count() > 0; }
  // Number of hosts that processes may share.
  int count() const { return static_cast<int>(places_.workers_on.size()); }

  // Chooses the host of the next process, and sets the claim in its request.
  // REQUIRES: called for each process, in the order of their numbers.
  void Settle(JoinRequest& request);

  // Returns the host of a process, or -1 if it has a host of its own.
  int HostOf(ProcessId process) const { return host_of_[process]; }
  // Returns the node of a process in the simulated network.
  NodeId NodeOf(ProcessId process) const;

  // Starts another kernel on a host, so that later processes make another host
  // claim.
  void Reboot(int host) { ++boots_[host]; }

 private:
  // Returns the host for a process, or -1 for a host of its own.
  int ChooseHost(const JoinRequest& request);
  // Returns the claim of a process that starts on `host` now.
  HostClaim ClaimOf(const JoinRequest& request, int host) const;

  const Places places_;       // Hosts of the first processes.
  std::vector<int> boots_;    // Number of reboots so far, by host.
  std::vector<int> host_of_;  // Host of each process, or -1.
  // Host of the last worker of each name, or -1.
  std::map<std::string, int> host_of_name_;
  int workers_begun_ = 0;  // Number of workers with a name of their own.
};

}  // namespace nereus
