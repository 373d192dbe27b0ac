#ifndef NEREUS_SERVER_COORDINATOR_JOIN_RULES_H_
#define NEREUS_SERVER_COORDINATOR_JOIN_RULES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_options.h"

namespace nereus {

// OK if the request's texts may stand in any message. Errors: kInvalidArgument.
absl::Status CheckTexts(const JoinRequest& request);

// OK if the process speaks this protocol. Errors: kInvalidArgument, it has no
// incarnation; kFailedPrecondition, with both versions.
absl::Status CheckBuild(const JoinRequest& request);

// A worker of the job, as messages name it, and what it said at joining.
struct JoinedWorker {
  std::string name;
  const JoinRequest* request = nullptr;
};

// What a process that asks to join a job must have in common with the job and
// with the workers that are there. Each error has the code kFailedPrecondition
// or kInvalidArgument, and names what differs with both values.
struct JoinRules {
  const CoordinatorOptions& options;
  const Job* job = nullptr;  // Null before the job runs.
  std::vector<JoinedWorker> workers;

  // The settings, and where the optimizer runs.
  absl::Status CheckSettings(const JoinRequest& request) const;

  // Of a worker: layers, optimizer state, and what multiplies factors.
  absl::Status CheckModel(const JoinRequest& request) const;

  // Of a server: whether it has a folder for checkpoints.
  absl::Status CheckFolder(const JoinRequest& request) const;

 private:
  // Where replicas are made of products, all must make the same.
  absl::Status CheckProducts(const JoinRequest& request) const;
  absl::Status CheckRestored(const JoinRequest& request) const;
  absl::Status CheckState(const JoinRequest& request) const;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_COORDINATOR_JOIN_RULES_H_
