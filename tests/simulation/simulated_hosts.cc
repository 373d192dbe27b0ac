#include "tests/simulation/simulated_hosts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"

namespace nereus {

SimulatedHosts::SimulatedHosts(const SimulatedClusterOptions& options)
    : places_(options.places), boots_(places_.workers_on.size(), 0) {
  const int workers = absl::c_accumulate(places_.workers_on, 0);
  NEREUS_CHECK(!any() || workers == options.workers)
      << "hosts have " << workers << " of " << options.workers << " workers";
}

void SimulatedHosts::Settle(JoinRequest& request) {
  const int host = any() ? ChooseHost(request) : -1;
  if (any()) request.host = ClaimOf(request, host);
  if (request.role == Role::kWorker) host_of_name_[request.name] = host;
  host_of_.push_back(host);
}

int SimulatedHosts::ChooseHost(const JoinRequest& request) {
  if (request.role == Role::kShard) {
    const bool is_placed = request.shard < std::ssize(places_.server_hosts);
    return is_placed ? places_.server_hosts[request.shard] : -1;
  }
  const auto earlier = host_of_name_.find(request.name);
  if (earlier != host_of_name_.end()) return earlier->second;
  int turn = workers_begun_++;
  for (int host = 0; host < count(); ++host) {
    if (turn < places_.workers_on[host]) return host;
    turn -= places_.workers_on[host];
  }
  const int joined_on = turn % (count() + 1);
  return joined_on == count() ? -1 : joined_on;
}

// With --node, the machine of a claim is the kernel. Without it, the machine is
// kernel and network namespace, as in common/driver/member_process.cc.
HostClaim SimulatedHosts::ClaimOf(const JoinRequest& request, int host) const {
  if (host >= 0) {
    const std::string kernel = absl::StrCat("kernel-", host, "-", boots_[host]);
    return host % 2 == 1 ? HostClaim{"rack", kernel}
                         : HostClaim{"", absl::StrCat(kernel, "/1")};
  }
  if (request.role == Role::kWorker) return {};
  return {"", absl::StrCat("kernel-of-server-", request.shard, "/1")};
}

// The first nodes are those of the hosts. The nodes of other processes follow.
NodeId SimulatedHosts::NodeOf(ProcessId process) const {
  const int host = HostOf(process);
  return host >= 0 ? host : count() + process;
}

}  // namespace nereus
