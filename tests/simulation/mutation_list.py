"""Mutations of the code that tests must find, and a check that they fit the code.

The table in docs/testing.md has the same names. mutations.py applies the mutations.
"""

import collections

# A place in a file: `old` occurs there once, and `new` takes its place.
Edit = collections.namedtuple("Edit", ["file", "old", "new"])
# Tests that may find a mutation: a Bazel target and a filter of GoogleTest.
# `seeds`: number of seeds that a property test tries; 0 for other tests.
Test = collections.namedtuple("Test", ["target", "filter", "seeds"])
# Change that breaks the code on purpose, and its tests in the order of their runs.
Mutation = collections.namedtuple("Mutation", ["name", "edits", "tests"])


def simulation(name, tests, seeds=0):
    return Test(f"//tests/simulation:{name}", tests, seeds)


SWARM = simulation("swarm_simulation_test",
                   "SwarmSimulationTest.LawsHoldUnderAnyFaults", 500)
NAN = simulation("nan_simulation_test",
                 "NanSimulationTest.NoNanGetsIntoParametersWhateverDies", 400)
TRAINING = simulation("training_laws_simulation_test", "TrainingLawsTest.*", 150)
PLAN_SWITCH = simulation("plan_switch_simulation_test", "PlanSwitchSimulationTest.*", 100)
# Jobs without faults, with repeated frames and exact sums.
COUNTED_ONCE = TRAINING._replace(filter="TrainingLawsTest.EveryContributionIsCountedOnce")

MUTATIONS = []


def add(name, tests, *edits):
    MUTATIONS.append(Mutation(name, [Edit(*edit) for edit in edits], tests))


# Rounds of the servers.

add("a repeated frame is counted again", [COUNTED_ONCE, SWARM],
    ("server/shard/chunk_rounds.cc",
     "  return full_.Has(contributor, frame) ? Landing::Discard()\n",
     "  return false                         ? Landing::Discard()\n"))

add("a frame of a past round counts for the open one", [SWARM, COUNTED_ONCE],
    ("server/shard/chunk_rounds.cc", """\
  if (header.round < round_ || phase_ != Phase::kCollecting) {
""", """\
  if (phase_ != Phase::kCollecting) {
"""))

add("the first contribution is added, not copied", [TRAINING],
    ("common/protocol/frame_sums.cc",
     "  const bool is_first = folded_[frame] == 0;\n",
     "  const bool is_first = false;\n"))

add("rank order is ignored under `--deterministic`",
    [TRAINING._replace(filter="TrainingLawsTest.DeterministicJobHasTheBitsOfOneMachine")],
    ("server/shard/chunk_rounds.cc", """\
            epoch->job->options.deterministic ? SumOrder::kRank
                                              : SumOrder::kArrival),
""", """\
            SumOrder::kArrival),
"""))

# Factors.

add("a peer's factors land in another rank's rows", [SWARM],
    ("worker/machine/factor_exchange.cc",
     "Rows(round, seat, header.part)",
     "Rows(round, round.contributors - 1 - seat, header.part)"))

add("a repeated frame of factors is counted", [SWARM],
    ("worker/machine/factor_exchange.cc",
     "  if (!is_first && round.frames.Has(place.index)) return Landing::Discard();\n",
     ""))

# Memory that a connection or a disk is still reading.

PARAMETERS_IN_PLACE = ("server/shard/held_chunk.cc", """\
  return parameters.unique() || parameters.data() == nullptr
             ? parameters
             : Buffer::Allocate(parameters.bytes());
""", """\
  return parameters;
""")

add("parameters change while a slow connection reads them",
    [Test("//tests/server:shard_test", "ShardTest.*", 0)],
    PARAMETERS_IN_PLACE)

add("a sum changes while a slow connection reads it",
    [Test("//tests/server:full_round_test", "*", 0)],
    ("server/shard/full_round.cc",
     "  if (!started_ && !sum_.unique()) {\n",
     "  if (!started_ && sum_.bytes() == 0) {\n"))

# Epochs.

add("a frame of an older epoch counts", [SWARM],
    ("common/protocol/member.cc",
     "  if (header.epoch < job.epoch) return Landing::Discard();\n", ""),
    ("common/protocol/job.cc",
     "  if (header.epoch != job.epoch) {\n",
     "  if (header.epoch > job.epoch) {\n"))

# If a round gets more contributors, it still begins anew: the vectors of FullRound
# have no room for more.
add("an open round keeps its contributions in the next epoch", [SWARM],
    ("server/shard/full_round.cc", """\
  contributors_ = contributors;
  sparse_ = sparse;
""", """\
  if (started_ && incomplete_ > 0 && contributors <= contributors_ &&
      sparse == sparse_) {
    return;
  }
  contributors_ = contributors;
  sparse_ = sparse;
"""))

add("a worker that missed a result does not get it again", [SWARM],
    ("server/shard/chunk_rounds.cc", """\
  const bool closed = round == round_ - 1 && held_.closed_in < epoch;
""", """\
  const bool closed = false;
"""))

# The epoch treats the report of the last member as empty.
add("an epoch begins before all members have reported", [SWARM],
    ("server/coordinator/member_list.h", """\
             return m.admitted && !m.report.has_value();
           }) == 0;
""", """\
             return m.admitted && !m.report.has_value();
           }) <= 1;
"""),
    ("server/coordinator/epochs.cc",
     "member.admitted ? member.report->report : MachineReport()",
     "member.report.value_or(EpochReport()).report"),
    ("server/coordinator/epochs.cc",
     "                                member.report->report});",
     "                                "
     "member.report.value_or(EpochReport()).report});"))

add("a worker that has reported goes on finishing rounds between workers", [SWARM],
    ("worker/machine/worker_machine.cc",
     "  if (frozen() && from.role == Role::kWorker) return Landing::Discard();\n",
     ""))

FINISHED_ROUNDS = """\
    if (UsesServers(job.routes[layer].scheme)) continue;
    const auto finished = FindFinished(static_cast<int>(layer), change);
"""

add("a factor round that some workers have finished is done again by the others", [SWARM],
    ("server/coordinator/epoch_change.cc", FINISHED_ROUNDS,
     FINISHED_ROUNDS.replace("UsesServers(job.routes[layer].scheme)",
                             "job.routes[layer].scheme != Scheme::kRing")))

add("members hear of an epoch before it is on disk", [SWARM],
    ("server/coordinator/coordinator.cc",
     "  Save(out);\n  epochs_.TellAll(out);\n",
     "  epochs_.TellAll(out);\n  Save(out);\n"))

add("a joining worker takes part in a step that others have begun", [SWARM],
    ("server/coordinator/epoch_change.cc",
     "    step = std::max(step, worker.report.begun_step + 1);\n",
     "    step = std::max(step, worker.report.begun_step);\n"))

add("no member ever counts as dead", [SWARM],
    ("server/coordinator/coordinator.cc",
     "  if (!over()) DropOverdueMembers(now, out);\n", ""))

# A new worker gets the lowest free rank, which is the rank of the dead worker.
add("a worker that counted as dead is admitted under its old rank", [SWARM],
    ("server/coordinator/member_list.cc",
     "    int rank = running ? next_rank_ : 0;\n",
     "    int rank = running && next_rank_ < 0 ? next_rank_ : 0;\n"))

# Backups.

add("a result leaves before the backup has it", [SWARM],
    ("server/shard/chunk_rounds.cc", """\
  phase_ = Phase::kOffered;
  replica_.SendMean(round_, full_, skipped_, out);
""", """\
  replica_.SendMean(round_, full_, skipped_, out);
  Close(out);
"""))

add("a backup counts as current when it is not", [SWARM],
    ("server/coordinator/epoch_change.cc",
     "    servers.backup_is_current = whole && Lives(change, servers.backup);\n",
     "    servers.backup_is_current = Lives(change, servers.backup);\n"))

add("a round that is closing is opened again in the next epoch", [SWARM],
    ("server/shard/chunk_rounds.cc",
     "  const bool stays = phase_ != Phase::kCollecting && epoch_.serves();\n",
     "  const bool stays = false;\n"))

add("a new backup gets no optimizer state", [SWARM],
    ("server/shard/chunk_rounds.cc",
     "    held_.state = copy->state();\n",
     "    held_.state = Buffer::AllocateZeroed(copy->state().bytes());\n"))

# Steps that are skipped because of a NaN.

add("a verdict comes before all have voted", [NAN],
    ("server/shard/votes.cc",
     "  if (!count.voted.Mark(job_->PositionOf(from.rank))) return std::nullopt;\n",
     "  count.voted.Mark(job_->PositionOf(from.rank));\n"
     "  if (count.voted.missing() > 1) return std::nullopt;\n"))

add("the last vote decides", [NAN],
    ("server/shard/votes.cc",
     "  count.skipped |= header.part == kSkipped;\n",
     "  count.skipped = header.part == kSkipped;\n"))

add("servers count votes after they have reported", [NAN],
    ("server/shard/votes.cc",
     "  if (!counts_ || frozen_ || is_past) return Landing::Discard();\n",
     "  if (!counts_ || is_past) return Landing::Discard();\n"))

add("a worker takes verdicts after it has reported", [NAN],
    ("worker/machine/worker_machine.cc",
     "  return frozen() || known ? Landing::Discard() : Landing::Scratch();\n",
     "  return known ? Landing::Discard() : Landing::Scratch();\n"))

add("the next epoch does not have the verdicts", [NAN],
    ("server/coordinator/epoch_change.cc",
     "  made.history.verdicts = AllVerdicts(change);\n",
     "  static_cast<void>(AllVerdicts(change));\n  made.history.verdicts.clear();\n"))

add("only infinities count as not finite", [NAN],
    ("common/compute/vectors.cc",
     "std::bit_cast<uint32_t>(kTooLarge) >> 23", "255"))

add("a server updates by a skipped step", [NAN],
    ("server/shard/chunk_rounds.cc",
     "    if (!skipped_) held_.UpdateFrom(job, round_, full_, scale_, out);\n",
     "    held_.UpdateFrom(job, round_, full_, scale_, out);\n"))

add("a server updates before the verdict", [NAN],
    ("server/shard/chunk_rounds.cc", """\
    if (!skipped.has_value()) return;
    skipped_ =
        *skipped && job.options.optimizer_place == OptimizerPlace::kServer;
""", """\
    skipped_ = skipped.value_or(false) &&
               job.options.optimizer_place == OptimizerPlace::kServer;
"""))

add("a worker updates by factors before the verdict", [NAN],
    ("worker/machine/peer_rounds.cc", """\
  return ledger_.is_sent() && At(ledger_.next_round()).frames.missing() == 0 &&
         ledger_.Skipped(ledger_.next_round()).has_value();
""", """\
  return ledger_.is_sent() && At(ledger_.next_round()).frames.missing() == 0;
"""),
    ("worker/machine/peer_rounds.h",
     "return *ledger_.Skipped(ledger_.next_round());",
     "return ledger_.Skipped(ledger_.next_round()).value_or(false);"))

# The primary sends the mean instead of the verdict. The condition is never true,
# because epochs begin at 1.
add("the backup updates by a skipped step", [NAN],
    ("server/shard/chunk_replica.cc",
     "  if (skipped) {\n",
     "  if (skipped && job.epoch == 0) {\n"))

add("a worker that repeats a step with a verdict contributes its NaN",
    [Test("//tests/worker:worker_machine_test", "*SettledStepTest*", 0)],
    ("worker/machine/worker_machine.cc",
     "  return !fit && verdicts_.Skipped(round) == false;\n",
     "  return !fit && verdicts_.Skipped(round) == false && round < 0;\n"))

add("a primary shows what its backup may not have", [SWARM, NAN],
    ("server/shard/chunk_rounds.cc",
     "  if (is_closed && counts && !closes_soon && replica_.AllowsShowing()) {\n",
     "  if (is_closed && counts && !closes_soon) {\n"))

# Rounds on a ring, and rounds between workers.

add("a ring round that some workers have finished is done again by the others", [SWARM, NAN],
    ("server/coordinator/epoch_change.cc", FINISHED_ROUNDS,
     FINISHED_ROUNDS.replace("UsesServers(job.routes[layer].scheme)",
                             "job.routes[layer].scheme != Scheme::kFactor")))

add("a repeated sum on a ring is added again", [SWARM, COUNTED_ONCE],
    ("worker/machine/ring_exchange.cc",
     "  const bool is_repeated = header.kind == FrameKind::kSum\n"
     "                               ? round.sums[index]\n"
     "                               : round.frames.Has(index);\n",
     "  const bool is_repeated =\n"
     "      header.kind != FrameKind::kSum && round.frames.Has(index);\n"))

add("an outcome is handed on with the checksum of the frame that brought it",
    [SWARM],
    ("worker/machine/local_half.cc",
     "  header.payload_crc = 0;  // The transport computes it.\n", ""))

# The local half: workers of one host.

add("parts of the last epoch count in a host's sum", [SWARM],
    ("worker/machine/local_half.cc", """\
    round.round = kInitialRound - 1;
    round.sums = FrameSums(OrderOf(*layer_.job));
""", """\
    static_cast<void>(round);
"""))

add("the carrier is that of the epoch's line-up", [SWARM],
    ("common/protocol/job.cc",
     "  const absl::Span<const int32_t> local = LineupOf(round).at(host);\n",
     "  const absl::Span<const int32_t> local =\n"
     "      LineupOf(round < 0 ? round : kStepMax).at(host);\n"))

add("a host's sum counts as one contribution in the mean", [SWARM],
    ("common/protocol/job.h",
     "    return 1.0f / static_cast<float>(ContributorsOf(round));\n",
     "    return 1.0f / static_cast<float>(LineupOf(round).hosts());\n"))

add("a round whose result came first keeps the caller's gradient",
    [Test("//tests/worker:host_rounds_test", "*HostEpochTest*", 0)],
    ("worker/machine/server_exchange.cc", "  local_.Close(round);\n", ""))

add("a carrier does not hand on factors of other hosts", [SWARM],
    ("worker/machine/factor_exchange.cc",
     "  if (is_carried) local_.HandOn(header, place.values, out);\n",
     "  if (is_carried && header.round < 0) {\n"
     "    local_.HandOn(header, place.values, out);\n  }\n"))

add("each host begins a direct sum with its own part", [SWARM],
    ("worker/machine/direct_exchange.cc", """\
  for (int each = 0; each < hosts; ++each) {
    out.Add(Accumulate{mean, Addend(PartOf(round, each, index)),
""", """\
  for (int each = 0; each < hosts; ++each) {
    const int from = (each + round.host) % hosts;
    out.Add(Accumulate{mean, Addend(PartOf(round, from, index)),
"""))

add("a host adds its own part without the rounding of the wire", [SWARM],
    ("worker/machine/direct_exchange.cc",
     "  out.Add(RoundValues{part, layer_.route().wire});\n", ""))

add("a mean is handed on before it is rounded for the wire", [SWARM],
    ("worker/machine/all_reduce.cc", """\
  out.Add(RoundValues{MemoryOf(round, index), layer_.route().wire});
  round.frames.Mark(index);
  PassMean(round, index, out);
""", """\
  round.frames.Mark(index);
  PassMean(round, index, out);
  out.Add(RoundValues{MemoryOf(round, index), layer_.route().wire});
"""))

add("a round is done before this worker's part of it is sent", [SWARM],
    ("worker/machine/peer_rounds.cc",
     "  return ledger_.is_sent() && At(",
     "  return ledger_.is_open() && At("))

add("a new epoch does not ask for results that were lost", [SWARM],
    ("worker/machine/server_exchange.cc",
     "  if (!is_first || job.epoch == kFirstEpoch || job.partial()) return false;\n",
     "  if (!is_first || job.epoch > 0 || job.partial()) return false;\n"))

# Checkpoints.

add("a manifest is written when the first part is there", [SWARM],
    ("server/coordinator/checkpoint_ledger.cc",
     "  if (parts.size() < ShardsWithChunks(job).size()) {\n",
     "  if (parts.size() < std::min<size_t>(1, ShardsWithChunks(job).size())) {\n"))

# The edit of "parameters change while a slow connection reads them": a disk reads
# the same memory.
add("values of a checkpoint are written over", [SWARM], PARAMETERS_IN_PLACE)

# The members go back to the first checkpoint of this coordinator.
add("all members go back to a checkpoint that is not the newest", [SWARM],
    ("server/coordinator/checkpoint_ledger.h", """\
    return state_.newest;
  }
""", """\
    return state_.newest;
  }
  const CheckpointRecord& first() const {
    return first_.has_value() ? *first_ : *state_.newest;
  }
"""),
    ("server/coordinator/checkpoint_ledger.h",
     "  State state_;\n",
     "  State state_;\n  std::optional<CheckpointRecord> first_;\n"),
    ("server/coordinator/checkpoint_ledger.cc",
     "  state_.newest = record;\n",
     "  state_.newest = record;\n  if (!first_.has_value()) first_ = record;\n"),
    ("server/coordinator/epochs.cc",
     "MakeRestartedEpoch(*job(), *target_, *newest, change)",
     "MakeRestartedEpoch(*job(), *target_, checkpoints_.first(), change)"))

add("a torn manifest is accepted",
    [SWARM, simulation("checkpoint_simulation_test", "CheckpointSimulationTest.*", 80)],
    ("common/checkpoint/manifest.cc",
     "  if (found == expected) return absl::OkStatus();\n",
     "  if (found.size() == expected.size()) return absl::OkStatus();\n"))

add("a damaged checkpoint that was set aside is taken again",
    [simulation("restart_simulation_test",
                "RestartSimulationTest.CheckpointThatRotsIsPassedOver", 60), SWARM],
    ("server/coordinator/checkpoint_ledger.cc",
     "  state_.newest = found.older;\n",
     "  if (!state_.newest.has_value()) state_.newest = found.older;\n"))

# The coordinator and its sessions.

add("a member's session sends heartbeats while its driver stands still",
    [SWARM, simulation("scripted_simulation_test", "*.WorkerWithAStalledDriverCountsAsDead")],
    ("common/driver/machine_driver.h",
     "    return {answered || work_.has_value(), work_, answered};\n",
     "    return {true, work_, answered};\n"))

add("messages that follow a state are sent although the state was not saved", [SWARM],
    ("server/coordinator/save_first.cc",
     "  if (held_.empty() || held_.front().state > saved_) return std::nullopt;\n",
     "  if (held_.empty()) return std::nullopt;\n"))

add("members owe answers to questions that a hanging save holds back",
    [simulation("restart_simulation_test", "*.NobodyCountsAsDeadWhileASaveHangs", 60)],
    ("server/coordinator/coordinator.h",
     "  void OnHeldBack(absl::Time now) { roster_.AskAgain(now); }\n",
     "  void OnHeldBack(absl::Time) {}\n"))

add("of a link that breaks again and again the first end is dropped, whichever it is",
    [SWARM, simulation("scripted_simulation_test", "*.FlappingLinkDoesNotCostTheCoordinator")],
    ("server/coordinator/broken_links.cc",
     "  const PeerId worse = WorseOf(link, now - window);\n",
     "  const PeerId worse = link.first;\n"))

# Hosts.

add("the machine of a host claim does not count", [SWARM],
    ("server/coordinator/host_table.cc",
     "  const auto known = numbers_.find(request.host);\n",
     "  const auto known = numbers_.lower_bound(HostClaim{request.host.node, \"\"});\n"))

add("members do not hear the hosts of workers", [SWARM],
    ("common/messages/job_messages.cc",
     "  c.Unless(-1, \"host\", worker.host);\n", ""))

add("the first host falls apart in line-ups", [SWARM],
    ("common/protocol/lineup.cc",
     "    if (each.host >= 0) {\n",
     "    if (each.host > 0) {\n"))

add("workers that could not connect stay one host", [SWARM],
    ("server/coordinator/host_table.cc",
     "  state_.split.insert(younger.incarnation);\n",
     "  state_.split.insert(0);\n"))

add("a connection that was lost counts as one that was never made", [SWARM],
    ("server/coordinator/epochs.cc",
     "  if (!lost.reached && SplitMates(member, *peer, lost.reason, out)) {\n",
     "  if (SplitMates(member, *peer, lost.reason, out)) {\n"))

# Products of factors that the workers of a host share.

add("a worker multiplies its part before all factors are there", [SWARM],
    ("worker/machine/factor_exchange.cc",
     "  const bool has_factors = round.frames.missing() == round.missing_parts;\n",
     "  const bool has_factors = true;\n"))

add("a round whose step is skipped waits for parts of the product", [NAN],
    ("worker/machine/factor_exchange.cc",
     "      if (!round.frames.Has(first + i)) round.frames.Mark(first + i);\n",
     "      static_cast<void>(first);\n"))

add("a round that comes whole from a source takes its mean from parts", [SWARM],
    ("worker/machine/factor_exchange.cc",
     "                         !rounds_.Recovers(round.round);\n",
     "                         true;\n"))

add("a round that comes whole from a source expects parts of the product", [SWARM],
    ("worker/machine/peer_rounds.cc",
     "  round.frames = FrameSet(frames);\n  round.missing_parts = 0;\n",
     "  round.frames = FrameSet(frames);\n"))

# Rows that a job learns.

add("parameters move when a job learns rows",
    [Test("//tests/common:placement_test", "*RowsDoNotMoveChunks*", 0), PLAN_SWITCH],
    ("common/plan/placement.cc",
     "    const bool has_factors = layers[chunks[i].layer].has_factors;\n",
     "    const bool has_factors = layers[chunks[i].layer].may_send_factors();\n"))

add("a model has learnt rows before members are ready to switch",
    [Test("//tests/server:plan_change_test", "*ModelStaysAsItIs*", 0)],
    ("server/coordinator/epoch_change.cc",
     "  if (is_ready && change.plan.has_value()) {\n", """\
  if (change.plan.has_value()) absl::c_copy(change.plan->layers, made.layers.begin());
  if (is_ready && change.plan.has_value()) {
"""))

add("steps wait for rows that no worker says", [PLAN_SWITCH],
    ("server/coordinator/epoch_change.cc",
     "job.switches() && change.learns_rows && !is_ready;\n",
     "job.switches() && change.learns_rows;\n"))

add("rows are known once one worker has said them",
    [Test("//tests/server:factor_reports_test", "*RowsAreKnownOnce*", 0)],
    ("server/coordinator/factor_reports.cc",
     "      return kRowsNotKnown;\n", "      continue;\n"))

add("reports of rows are lost with a session",
    [Test("//tests/common:member_test", "*RowsAreRepeated*", 0)],
    ("common/protocol/member.cc",
     "    if (!factor_rows_.rows.empty()) out.Add(SendMessage{factor_rows_});\n", ""))

add("lost factors come back",
    [Test("//tests/common:membership_test", "*LostFactorsStayLost*", 0)],
    ("common/protocol/membership.cc",
     "        rows[i] == kFactorsLost || later.rows[i] == kFactorsLost;\n",
     "        later.rows[i] == kFactorsLost;\n"))

# Dense gradients in place of factors.

add("a dense gradient is added to the rows of factors before it", [TRAINING, SWARM],
    ("worker/machine/factor_exchange.cc",
     "    out.Add(CopyValues{rows, Buffer::AllocateLike(rows, rows.bytes())});\n",
     "    out.Add(CopyValues{rows, rows});\n"))

add("dense gradients are added in the order of arrival", [TRAINING, SWARM],
    ("worker/machine/peer_rounds.cc",
     "[seat](const DenseGradient& dense) { return dense.seat > seat; }",
     "[seat](const DenseGradient& dense) { return dense.seat + seat < 0; }"))

add("a round from a source comes without its dense gradients", [SWARM],
    ("worker/machine/peer_rounds.cc",
     "  if (finished_.dense_sum.bytes() > 0) {\n",
     "  if (finished_.dense_sum.bytes() < 0) {\n"))

add("a dense gradient stays in the sum of a later round",
    [Test("//tests/worker:peer_rounds_test", "*ARoundFromTheSource*", 0)],
    ("worker/machine/peer_rounds.cc",
     "  if (round.dense.empty() || IsSkipped()) round.dense_sum = Buffer();\n", ""))

# Samples of replicas.

SAMPLES = simulation("replica_samples_simulation_test",
                     "*WorkerThatDeviatesIsNamedWithinSeconds", 100)

add("replicas of partial rounds are compared", [SWARM],
    ("worker/machine/layer_transfer.cc",
     "  return made_values() && !layer_.job->partial() &&\n",
     "  return made_values() &&\n"))

add("checksums of an earlier epoch are compared", [SWARM],
    ("server/coordinator/coordinator.cc", "  replicas_.Clear();\n", ""))

add("the rounds that a worker samples depend on its exact pace", [SAMPLES],
    ("worker/machine/sample_schedule.cc",
     "      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(steps)));\n",
     "      steps + 0 * static_cast<int64_t>(std::bit_floor(uint64_t{1}));\n"))

add("the first report of a round counts as right", [SAMPLES],
    ("server/coordinator/replica_check.cc",
     "        return a.reporters.size() < b.reporters.size();\n",
     "        return &a < &b && false;\n"))

# Copies of shards.

COPIES = simulation("copy_check_simulation_test", "CopyCheckSimulationTest.*", 20)

add("the copies of a shard are not compared", [COPIES],
    ("server/coordinator/copy_check.cc",
     "      before.layers == checksums.layers) {\n",
     "      !before.layers.empty()) {\n"))

# Long work.

add("long work that gets further counts as standing still", [SWARM],
    ("server/coordinator/member_list.cc",
     "  if (last.work != heartbeat.work) times.moved_at = now;\n",
     "  if (last.work.has_value() != heartbeat.work.has_value()) times.moved_at = now;\n"))

add("a server that reads a checkpoint owes its report at once", [SWARM],
    ("server/coordinator/member_list.cc",
     "report_due && !report.has_value() && !heartbeat.work.has_value();\n",
     "report_due && !report.has_value();\n"))

# Links.

add("a server that has lost more links than a worker stays",
    [simulation("scripted_simulation_test", "*CutServerTest*", 2)],
    ("server/coordinator/broken_links.cc",
     "  if (first != second) return first > second ? link.first : link.second;\n",
     "  if (first != second) return link.first;\n"))

# Newcomers.

BRAKE = simulation("join_brake_simulation_test", "JoinBrakeSimulationTest.*", 4)

add("newcomers join at once", [BRAKE],
    ("server/coordinator/join_brake.cc",
     "  return std::max(absl::ZeroDuration(), free_at - now);\n",
     "  return std::min(absl::ZeroDuration(), free_at - now);\n"))

# Gatherings before the job begins.

LOBBY = simulation("lobby_simulation_test",
                   "LobbySimulationTest.AllLivesOfAllProcessesGatherTheSame", 300)

add("a value that is sent again counts as that of another process", [LOBBY],
    ("server/coordinator/lobby_gatherings.cc",
     "  } else {\n    ++here_count_;\n  }\n",
     "  }\n  ++here_count_;\n"))

add("a process that is started again gets the newest answer", [LOBBY],
    ("server/coordinator/lobby_gatherings.cc",
     "SendToMember{session, answers_[gather.index]}",
     "SendToMember{session, answers_.back()}"))

add("processes hear an answer before it is on disk", [LOBBY],
    ("server/coordinator/coordinator.cc",
     "  if (lobby_.Complete()) Save(out);\n  lobby_.Send(out);\n",
     "  const bool is_new = lobby_.Complete();\n  lobby_.Send(out);\n"
     "  if (is_new) Save(out);\n"))

add("an answer that comes twice ends the next gathering", [LOBBY],
    ("worker/machine/lobby_ledger.h",
     "      if (is_open_ && answer->index == last_.index) answer_ = *answer;\n",
     "      if (is_open_) answer_ = *answer;\n"))

# Turns at a device that jobs share.

SHARED = simulation("shared_device_simulation_test", "SharedDeviceTest.*", 60)

add("a worker keeps its turn while it waits for others", [SHARED],
    ("worker/machine/turn_keeper.h",
     "    const bool computes = !waits && Computes(open);\n",
     "    const bool computes = (void(waits), Computes(open));\n"))

add("the order of turns follows the time that each node has measured", [SHARED],
    ("worker/machine/turn_keeper.h",
     "rule_.KeyOf(step_, taker_.slot().weight)",
     "absl::ToDoubleSeconds(taker_.slot().turn_time)"))

add("a worker that was passed does not know it", [SHARED],
    ("common/share/turn_taker.h",
     "    return slot_.state == TurnSlot::State::kIn && board_.Holds(turn_);\n",
     "    return slot_.state == TurnSlot::State::kIn;\n"))


def misfits(read):
    """Yields the file and a message for each mutation that does not fit the code.

    `read`: returns the text of a file, by its path below the top.
    """
    table = read("docs/testing.md")
    for mutation in MUTATIONS:
        if f"\n| {mutation.name} |" not in table:
            yield "docs/testing.md", f"the table has no row for the mutation '{mutation.name}'"
        for edit in mutation.edits:
            try:
                count = read(edit.file).count(edit.old)
            except OSError as error:
                yield edit.file, f"mutation '{mutation.name}': {error.strerror}"
                continue
            if count != 1:
                yield edit.file, (f"mutation '{mutation.name}': its old text is there {count} "
                                  f"times, not once: {edit.old.strip().splitlines()[0]}")
