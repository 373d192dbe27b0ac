#include "tests/testing/some_state.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

CoordinatorState::Member MemberOf(PeerId id) {
  CoordinatorState::Member member;
  member.id = id;
  member.request.protocol_version = 1;
  member.request.build = "0.1.0";
  member.request.job = "training";
  member.request.role = id.role;
  if (id.role == Role::kShard) {
    member.request.shard = id.rank;
    member.request.has_checkpoints = true;
  }
  member.request.incarnation = 1000 + static_cast<uint64_t>(id.rank);
  member.request.name = absl::StrCat("host:", id.rank);
  member.request.data_address = absl::StrCat("host:", id.rank + 7000);
  member.request.caller.state_arrays = 3;
  member.request.host = {"rack-3", absl::StrCat("machine-", id.rank)};
  return member;
}

CheckpointLedger::State SomeCheckpoints() {
  CheckpointLedger::State checkpoints;
  checkpoints.stretches = {{9, 18, 2}, {21, 42, 3}};
  checkpoints.newest = CheckpointRecord{
      12, 26, {{"shard-0", 1234, 0xdeadbeef}, {"shard-1", 99, 7}}};
  checkpoints.restarted_in = 4;
  checkpoints.damaged = {{40, "shard-0 is torn"}, {30, "shard-1 is missing"}};
  return checkpoints;
}

}  // namespace

CoordinatorState SomeState() {
  JobOptions options;
  options.optimizer = kReferenceOptimizer;
  options.optimizer_place = OptimizerPlace::kWorker;
  options.deterministic = true;
  options.checkpoint_every = 6;
  const JobPtr first = TestJob(
      2, 2, {VectorLayer("scale", 8), FactorLayer("fc", 64, 32, true, 4)},
      options, Scheme::kFactor);
  CoordinatorState state;
  state.state = JobState::kFailed;
  state.reason = "worker 2 is gone";
  state.epoch.job = EpochAfter(*first, [](Job& job) {
    job.workers = {{1, 9, 1}, {4, 21, 0}};
    job.crew.left_workers = {0};
    job.state_arrays = 3;
    job.history.base_round = 8;
    job.history.first_step = 21;
    job.history.contributions_before = 42;
    job.history.finished_rounds = {{1, 20, 0, 2}};
    job.history.donor = 1;
    job.checkpoint_round = 22;
    job.options.backup = true;
    job.options.nan = NanPolicy::kSkip;
    job.history.verdicts = {{20, false}, {21, true}};
    job.shard_servers = {{1, 0, false}, {1, 0, true}};
  });
  state.epoch.explanations = {{10, 15, 17, std::nullopt, "no factors"},
                              {20, 25, 27, 30, "fewer"}};
  for (const PeerId id : {PeerId::Shard(0), PeerId::Shard(1), PeerId::Worker(0),
                          PeerId::Worker(1), PeerId::Worker(4)}) {
    state.members.push_back(MemberOf(id));
  }
  for (const CoordinatorState::Member& member : state.members) {
    state.epoch.members.push_back({member.id, member.request.incarnation,
                                   member.request.data_address,
                                   member.id.rank});
  }
  state.members[3].life = {12, 3};
  state.members[2].left = true;
  state.members[2].last_step = 20;
  state.next_rank = 5;
  state.epoch.all_from_base = true;
  state.epoch.workers_from_base = {1};
  state.epoch.broken_links = {{PeerId::Worker(1), PeerId::Shard(0)}};
  state.checkpoints = SomeCheckpoints();
  state.checkpoint_wanted = true;
  state.hosts.hosts = {{{"rack-3", "machine-0"}, "host:0"},
                       {{"rack-3", "machine-1"}, "host:1"}};
  state.hosts.split = {1004};
  state.lobby = {{0, {"x", std::string(2, '\0')}, ""}, {1, {}, "too long"}};
  state.gatherings.first = {{{kInitialRound, 0}, {"a", "b"}, ""}};
  state.gatherings.newest = Gathered{{20, 1}, {"c", std::string(1, '\0')}, ""};
  state.lost_factors = {{1, "worker b"}};
  state.epoch.turns = TurnRule{12.5, absl::Milliseconds(30)};
  return state;
}

}  // namespace nereus
