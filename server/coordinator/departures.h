#pragma once

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator_options.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/epochs.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Members that leave: workers whose work is done, workers that leave a job that
// goes on (Leave::early), and servers that ask to leave.
//
//   worker --Leave--> left; the job goes on without it, or is over once all
//     workers have left
//   server --Leave--> it asks; once backups have its values: removed
//
// Keeps no state of its own: it is in the roster.
class Departures {
 public:
  // All are borrowed and must outlive this.
  Departures(const CoordinatorOptions* options, MemberList* roster,
             const Epochs* epochs)
      : options_(*options), roster_(*roster), epochs_(*epochs) {}

  // Handles the Leave of a member. Returns true if the caller must save the
  // state. Errors: kInvalidArgument, the member may not leave so.
  absl::StatusOr<bool> OnLeave(MemberRecord& member, const Leave& leave,
                               CoordinatorOutbox& out) const;

  // Asks the member `name` to leave, for an operator: the name of a worker, or
  // "shard 2". `state`: phase of the job. Errors: kNotFound, the job has no
  // such member; kFailedPrecondition, the job does not run, or the member
  // cannot leave; kUnavailable, it has no session now.
  absl::Status Ask(absl::string_view name, JobState state,
                   CoordinatorOutbox& out) const;

  // True if `name`, as in Ask, names a member that has not left.
  bool HasMember(absl::string_view name) const;

  // Returns a server that has asked to leave and that the job can spare: other
  // servers have the values of all shards. Null if there is none, or if all
  // workers have left, because their last checkpoint needs every server.
  MemberRecord* FindSpareServer() const;

  // True if there are workers, and all of them have left.
  bool AllLeft() const { return roster_.AllLeft(); }

  // True if each worker in the roster has left before the job was done.
  // REQUIRES: all workers have left.
  bool AllLeftEarly() const;

 private:
  const CoordinatorOptions& options_;
  MemberList& roster_;
  const Epochs& epochs_;
};

}  // namespace nereus
