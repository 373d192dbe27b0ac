#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/lineup.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// All members of an epoch derive one line-up for each round, and it is a proper
// one:
//
//   hosts     are ordered by their lowest rank, and have the workers that the
//             job puts on them
//   seats     are dense: each contributor has one, host by host
//   carriers  each unit of each layer has one on each host
//   numbers   a host claim has one number for the life of the job, and no other
//             claim has that number; a process without a claim has none, and
//             neither has a worker that was split for its life, because it and
//             another worker of its host could not connect
//
// Neither hosts nor carriers travel in frames. If two members derived different
// ones, a worker would send its part of a unit to a worker that does not sum
// it, and the round would never end.
class LineupLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "all members have the same line-up";
  }
  void Observe(const ClusterEvent& event) override;

  // Number of jobs that were checked: one for each epoch and member.
  int64_t checked_count() const { return checked_count_; }

 private:
  // Line-ups that one member has derived for an epoch: a text for the hosts of
  // each distinct line-up, and for the carriers of each layer in it.
  struct Derived {
    std::string member;              // Name of the member.
    std::vector<std::string> lines;  // Texts, in order.
  };

  // Checks the job that `member` has, and compares it with that of the first
  // member of the epoch.
  void Check(const Job& job, const std::string& member);
  // Compares a line-up with the workers that the job names.
  void CheckHosts(const Job& job, int64_t round, const std::string& member);
  void CheckSeats(const Job& job, int64_t round, const std::string& member);
  // Checks the carriers of all units of a layer, and returns them as a text.
  std::string CheckCarriers(const Job& job, int64_t round, int layer,
                            const std::string& member);
  // Checks the numbers of the hosts of all members.
  void CheckNumbers(const EpochEntered& entered);
  // `may_be_split`: the member could not connect to a worker of its host.
  void CheckNumber(const EpochMember& member, const HostClaim& claim,
                   bool may_be_split, uint64_t epoch);

  std::map<uint64_t, Derived> first_;     // First member of each epoch.
  std::map<HostClaim, int32_t> numbers_;  // Number of each claim.
  std::map<int32_t, HostClaim> claims_;   // Claim of each number.
  // First epoch in which each split worker was seen as a host of its own.
  std::map<PeerId, uint64_t> split_in_;
  int64_t checked_count_ = 0;
};

}  // namespace nereus
