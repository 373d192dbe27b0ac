#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Gatherings of processes that were started together and have not joined yet,
// for example because one of them prepares the data that all need to make their
// models. These processes are no members: a session of the lobby carries
// nothing but LobbyGather, and the coordinator does not wait for its end.
//
//   value of each process --the last one has come--> answer, kept for the job
//   a process that is started again --asks again--> gets the kept answers
//
// A process gathers for the next time only after it has the answer. So at most
// one gathering is open, that with the index of the next answer. A process that
// asks for a later one has answers that this coordinator does not know.
//
// While the job runs, no gathering can be completed, because all workers have
// joined. Kept answers are still sent.
//
// Bounded: 2 MiB for the values of the open gathering, and kLobbyGatheringsMax
// answers of at most 2 MiB. Pure.
class LobbyGatherings {
 public:
  // Lobby of `count` processes. `answers`: those of a saved state.
  explicit LobbyGatherings(int count, std::vector<LobbyGathered> answers = {})
      : count_(count), answers_(std::move(answers)) {}

  // True if the session belongs to a process in the lobby.
  bool Has(SessionId session) const { return numbers_.contains(session); }
  // Takes the value of a process, and sends the answer if there is one already.
  // `runs`: the job runs. Refuses a process that cannot get an answer. If
  // another session has the same number, that session is refused: its process
  // is dead, or the launcher has given a number twice.
  // REQUIRES: CheckLobby has returned OK for `gather`.
  void OnGather(SessionId session, const LobbyGather& gather, bool runs,
                absl::Time now, CoordinatorOutbox& out);
  // Notes the end of a session. The value of its process still counts.
  void OnSessionEnd(SessionId session);

  // Makes the answer of the open gathering if all values have come. Returns
  // true if the state must be saved before Send is called.
  bool Complete();
  // Sends the answer that Complete has made.
  void Send(CoordinatorOutbox& out);

  // Tells processes that have waited for some seconds which processes are
  // missing.
  void SendNotices(const MemberList& roster, absl::Time now,
                   CoordinatorOutbox& out);

  // Refuses the process of a session, and ends the session. REQUIRES:
  // Has(session).
  void Refuse(SessionId session, const absl::Status& why,
              CoordinatorOutbox& out);
  // Refuses all processes that wait for an answer, because the job begins.
  void RefuseWaiting(CoordinatorOutbox& out);
  // Refuses all processes, because the job is over for the reason `why`.
  void RefuseAll(const absl::Status& why, CoordinatorOutbox& out);

  // Answers of all gatherings, by LobbyGathered::index.
  const std::vector<LobbyGathered>& answers() const { return answers_; }

 private:
  // Process that has gathered.
  struct Process {
    std::optional<SessionId> session;  // Its open session.
    uint64_t incarnation = 0;          // LobbyGather::incarnation.
    // Its value in the open gathering; "" if the gathering will fail because
    // the values have too many bytes.
    std::optional<std::string> value;
    size_t bytes = 0;  // Length of the value that it has sent.
    // Time when the value came, or when the process last got a notice that it
    // waits.
    absl::Time noticed_at;
  };
  // Returns the error for a process that gathers after all have joined.
  absl::Status TooOftenError(int32_t number) const;
  // Sets the session of a process.
  void Attach(int32_t number, SessionId session);
  // Keeps the value of a process, in place of its last one.
  void NoteValue(Process& process, const std::string& value);
  // Forgets all values, because the open gathering has ended.
  void ClearValues();
  // Returns a text with the processes that the open gathering waits for.
  std::string DescribeWait(const MemberList& roster) const;

  const int count_;                       // Number of processes.
  std::vector<LobbyGathered> answers_;    // See answers().
  std::map<int32_t, Process> processes_;  // Processes, by number.
  std::map<SessionId, int32_t> numbers_;  // Numbers of processes, by session.
  // Values in the open gathering: how many there are, their length together,
  // and the largest length that they have had together. If that is too large,
  // the gathering fails.
  int here_count_ = 0;
  size_t bytes_ = 0;
  size_t most_bytes_ = 0;
  bool is_ready_ = false;  // True if the last answer is to be sent.
};

}  // namespace nereus
