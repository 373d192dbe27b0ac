#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/membership.h"

namespace nereus {

// Numbers of the hosts that the members of a job run on. Processes with equal
// claims (HostClaim) are on one host. Two machines have two claims, so that no
// process can claim a host of another machine by mistake. Plain bookkeeping.
//
//   {node "",  machine "b1/42"}  host 0: one machine, one network namespace
//   {node "a", machine "b1"}     host 1: pods of node "a" on the same machine
//   {node "a", machine "b2"}     host 2: another machine that says --node=a
//   {node "",  machine ""}       -1: a host of its own
//
// A host keeps its number for the life of the job, and no number is given
// twice. Bounded by kHostsMax hosts: after that, processes of new hosts are
// hosts of their own, which costs speed and nothing else.
class HostTable {
 public:
  // Host that has a number.
  struct Host {
    HostClaim claim;     // Claim of all its processes.
    std::string member;  // Name of its first process, for messages.

    bool operator==(const Host&) const = default;
  };
  // Content of the table, which a coordinator saves.
  struct State {
    std::vector<Host> hosts;   // Index: number. No two claims are equal.
    std::set<uint64_t> split;  // Incarnations of the split processes.

    bool operator==(const State&) const = default;
  };
  // Answer of NumberOf.
  struct Numbered {
    int32_t host = -1;  // Number of the host; -1: a host of its own.
    std::string news;   // Line for the log, or "".
  };

  HostTable() = default;
  // Makes the table that was saved. REQUIRES: `saved` is as State says.
  explicit HostTable(State saved);

  // Returns the number of a process's host; a host without a number gets one.
  // The host is -1 for a process that is split or does not know its machine,
  // and for a new host when the table is full. There is news if a process of
  // another machine has said the same --node, once for each node.
  Numbered NumberOf(const JoinRequest& request);

  // Makes two hosts of the host of two workers that cannot connect: `younger`
  // becomes a host of its own for its life. Returns a line for the log with the
  // reason, or "" if one of the two is split already. Returns nothing, and
  // changes nothing, if kHostsMax processes are split already.
  std::optional<std::string> Split(const JoinRequest& elder,
                                   const JoinRequest& younger,
                                   absl::string_view reason);
  // True if Split has made the process a host of its own.
  bool IsSplit(uint64_t incarnation) const {
    return state_.split.contains(incarnation);
  }
  // Forgets the split processes that are not in `alive`. A process that is gone
  // does not come back under its incarnation.
  void KeepSplits(const std::set<uint64_t>& alive);

  const State& state() const { return state_; }

 private:
  // Returns the news about a new host, or "".
  std::string DescribeTwin(const JoinRequest& request) const;

  State state_;
  std::map<HostClaim, int32_t> numbers_;  // Number of each host, by its claim.
};

}  // namespace nereus
