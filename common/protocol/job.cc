#include "common/protocol/job.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

template <typename T>
absl::Status Wrong(const FrameHeader& header, absl::string_view field,
                   const T& found, const T& expected) {
  return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header), ": ",
                                                 field, " is ", found,
                                                 ", expected ", expected));
}

// The offset of a frame has 32 bits.
constexpr int64_t kOffsetMax = int64_t{1} << 32;

absl::Status CheckRing(const LayerSpec& layer) {
  if (layer.parameters <= kOffsetMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the plan sends ", DescribeLayer(layer),
                   " around a ring, which takes ", kOffsetMax, " parameters"));
}

absl::Status CheckFactors(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kFullyConnected) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan sends ", DescribeLayer(layer),
                     " by factors, which only fc layers have"));
  }
  const int64_t rows_max = kOffsetMax / std::max(layer.m, layer.n);
  if (layer.rows <= rows_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the plan sends ", DescribeLayer(layer),
                   " by factors of more than ", kOffsetMax, " elements each"));
}

absl::Status CheckRoute(const LayerSpec& layer, const Route& route) {
  if (WireBytes(route.wire) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan sends ", DescribeLayer(layer), " by no wire type"));
  }
  switch (route.scheme) {
    case Scheme::kServer:
      return absl::OkStatus();
    case Scheme::kFactor:
      return CheckFactors(layer);
    case Scheme::kRing:
      return CheckRing(layer);
  }
  return absl::InvalidArgumentError("unknown scheme");
}

absl::Status CheckCount(absl::string_view name, int64_t count, int64_t max) {
  if (count >= 1 && count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", count, ", must be in [1, ", max, "]"));
}

bool IsWorkerOrLeaver(const Job& job, int rank) {
  return job.PositionOf(rank) >= 0 ||
         std::binary_search(job.leavers.begin(), job.leavers.end(), rank);
}

bool IsMember(const Job& job, PeerId peer) {
  return peer.role == Role::kShard ? job.Holds(peer.rank)
                                   : IsWorkerOrLeaver(job, peer.rank);
}

absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min) {
  if (step >= min && step <= kStepMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", step, ", must be in [", min, ", ", kStepMax, "]"));
}

absl::Status CheckWorkers(const Job& job) {
  NEREUS_RETURN_IF_ERROR(
      CheckCount("workers", job.worker_count(), kWorkersMax));
  WorkerSeat before = {-1, 0};
  for (const WorkerSeat& seat : job.workers) {
    NEREUS_RETURN_IF_ERROR(CheckStep("a first step", seat.first_step, 0));
    if (seat.rank <= before.rank || seat.rank >= kRanksMax ||
        seat.first_step < before.first_step) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker ", seat.rank, " from step ", seat.first_step,
          " comes after worker ", before.rank, " from step ", before.first_step,
          ": both must ascend, ranks below ", kRanksMax));
    }
    before = seat;
  }
  return absl::OkStatus();
}

absl::Status CheckLeavers(const Job& job) {
  int32_t before = -1;
  for (const int32_t rank : job.leavers) {
    if (rank <= before || rank >= kRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", rank, ", who has left, comes after worker ",
                       before, ": must ascend, below ", kRanksMax));
    }
    if (job.PositionOf(rank) >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", rank, " has left, and is a worker"));
    }
    before = rank;
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const Job& job) {
  NEREUS_RETURN_IF_ERROR(
      CheckStep("base_round", job.base_round, kInitialRound));
  NEREUS_RETURN_IF_ERROR(CheckStep("first_step", job.first_step, 0));
  NEREUS_RETURN_IF_ERROR(
      CheckStep("checkpoint_round", job.checkpoint_round, kInitialRound));
  return CheckStep("contributions_before", job.contributions_before, 0);
}

absl::Status CheckVerdicts(const Job& job) {
  if (job.verdicts.size() > kVerdictsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(job.verdicts.size(), " verdicts, at most ", kVerdictsMax));
  }
  int64_t before = kInitialRound;
  for (const StepVerdict& verdict : job.verdicts) {
    NEREUS_RETURN_IF_ERROR(CheckStep("a verdict's step", verdict.step, 0));
    if (verdict.step <= before) {
      return absl::InvalidArgumentError(
          absl::StrCat("the verdict on step ", verdict.step,
                       " comes after that on ", before, ": must ascend"));
    }
    before = verdict.step;
  }
  return absl::OkStatus();
}

absl::Status CheckFinished(const Job& job, const FinishedRound& finished) {
  const bool layer_known = finished.layer >= 0 &&
                           finished.layer < static_cast<int>(job.layers.size());
  if (layer_known && IsWorkerOrLeaver(job, finished.holder) &&
      finished.round >= 0 && finished.round <= kStepMax &&
      finished.contributors >= 1 && finished.contributors <= kWorkersMax &&
      PassesServers(job.routes[finished.layer].scheme)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "round ", finished.round, " of layer ", finished.layer,
      " is held by worker ", finished.holder, " with ", finished.contributors,
      " contributors: no such layer between workers, or no such worker"));
}

absl::Status CheckHolders(const Job& job, int shards) {
  if (job.options.backup && shards < 2) {
    return absl::InvalidArgumentError(
        "backup needs 2 shards or more: a copy is on another server");
  }
  if (static_cast<int>(job.holders.size()) != shards) {
    return absl::InvalidArgumentError(
        absl::StrCat(job.holders.size(), " shards have holders, of ", shards));
  }
  for (const ShardHolders& holders : job.holders) {
    const bool copied = holders.copy != -1;
    if (holders.server >= 0 && holders.server < shards && holders.copy >= -1 &&
        holders.copy < shards && holders.copy != holders.server &&
        (job.options.backup || !copied) && (copied || !holders.whole)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a shard of ", shards, " is served by ", holders.server,
                     " and copied by ", holders.copy));
  }
  return absl::OkStatus();
}

// What does not go together with rounds that close without some.
absl::Status CheckPartial(const JobOptions& options) {
  const std::string quorum =
      absl::StrCat("quorum ", QuorumName(options.quorum));
  const auto refuse = [&](absl::string_view what, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " does not go with ", quorum, ": ", why));
  };
  if (options.optimizer_place == OptimizerPlace::kWorker) {
    return refuse("optimizer worker",
                  "a worker that misses a round's mean would drift from the "
                  "others");
  }
  if (options.nan == NanPolicy::kSkip) {
    return refuse("nan skip", "a step's verdict waits for everybody's vote");
  }
  if (options.deterministic) {
    return refuse("deterministic", "who is in a round depends on when it came");
  }
  if (options.backup) {
    return refuse(
        "backup",
        "a copy follows whole rounds, and has no part in the sum that "
        "is open");
  }
  if (options.quorum == Quorum::kEach && options.resync_every > 0) {
    return refuse("resync", "no round waits for anybody but by staleness");
  }
  if (options.staleness < 0 || options.staleness > kStalenessMax ||
      options.resync_every < 0 || options.resync_every > kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("staleness is ", options.staleness, " and resync_every ",
                     options.resync_every, ", must be in [0, ", kStepMax, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view OptimizerPlaceName(OptimizerPlace place) {
  return place == OptimizerPlace::kServer ? "server" : "worker";
}

absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name) {
  if (name == "server") return OptimizerPlace::kServer;
  if (name == "worker") return OptimizerPlace::kWorker;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown place for the optimizer \"", name,
                   "\", must be server or worker"));
}

absl::string_view NanPolicyName(NanPolicy policy) {
  switch (policy) {
    case NanPolicy::kFail:
      return "fail";
    case NanPolicy::kSkip:
      return "skip";
    case NanPolicy::kIgnore:
      return "ignore";
  }
  return "unknown";
}

absl::string_view QuorumName(Quorum quorum) {
  switch (quorum) {
    case Quorum::kAll:
      return "all";
    case Quorum::kMajority:
      return "majority";
    case Quorum::kSolo:
      return "solo";
    case Quorum::kEach:
      return "each";
  }
  return "unknown";
}

absl::string_view OverlapName(Overlap overlap) {
  switch (overlap) {
    case Overlap::kNone:
      return "none";
    case Overlap::kWaitFree:
      return "wfbp";
    case Overlap::kDecoupled:
      return "dear";
  }
  return "unknown";
}

absl::Status JobOptions::Validate() const {
  NEREUS_RETURN_IF_ERROR(optimizer.Validate());
  NEREUS_RETURN_IF_ERROR(CheckStep("checkpoint_every", checkpoint_every, 0));
  if (fusion_bytes < kNoFusion || fusion_bytes > kFusionBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("fusion_bytes is ", fusion_bytes, ", must be from ",
                     kNoFusion, ", none, to ", kFusionBytesMax));
  }
  if (quorum != Quorum::kAll) NEREUS_RETURN_IF_ERROR(CheckPartial(*this));
  if (tune_fusion && fusion_bytes == kNoFusion) {
    return absl::InvalidArgumentError(
        "fusion is to be tuned, and is off: it needs bytes to begin with");
  }
  if (scale_loss && nan != NanPolicy::kSkip) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scaling looks for the scale at which gradients "
                     "overflow, which must cost a step and not the job: nan "
                     "is ",
                     NanPolicyName(nan), ", must be skip"));
  }
  return absl::OkStatus();
}

PlanRules RulesFor(const JobOptions& options, PlanRules rules) {
  if (options.quorum != Quorum::kAll) {
    rules.servers_only =
        absl::StrCat("between workers everybody is needed, not quorum ",
                     QuorumName(options.quorum));
  }
  return rules;
}

bool Job::Holds(int server) const {
  const auto holds = [&](const ShardHolders& each) {
    return each.server == server || each.copy == server;
  };
  return server >= 0 && std::any_of(holders.begin(), holders.end(), holds);
}

int Job::PositionOf(int rank) const {
  const auto found = std::lower_bound(
      workers.begin(), workers.end(), rank,
      [](const WorkerSeat& seat, int wanted) { return seat.rank < wanted; });
  if (found == workers.end() || found->rank != rank) return -1;
  return static_cast<int>(found - workers.begin());
}

int Job::ContributorsOf(int64_t round) const {
  const auto first_later =
      std::upper_bound(workers.begin(), workers.end(), round,
                       [](int64_t wanted, const WorkerSeat& seat) {
                         return wanted < seat.first_step;
                       });
  return static_cast<int>(first_later - workers.begin());
}

int Job::InitiatorOf(int64_t round) const {
  // Steele et al., "Fast splittable pseudorandom number generators":
  // SplitMix64.
  uint64_t drawn = id + static_cast<uint64_t>(round) * 0x9e3779b97f4a7c15;
  drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9;
  drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111eb;
  drawn ^= drawn >> 31;
  const auto contributors = static_cast<uint64_t>(ContributorsOf(round));
  return static_cast<int>(drawn % contributors);
}

bool Job::IsCheckpoint(int64_t round) const {
  if (round <= base_round) return false;
  const int64_t every = options.checkpoint_every;
  return round == checkpoint_round || (every > 0 && (round + 1) % every == 0);
}

WireType Job::WireOf(const FrameHeader& header) const {
  const auto layer = static_cast<int>(header.layer);
  const WireType wire = routes[layer].wire;
  switch (header.kind) {
    case FrameKind::kContribution:
      return header.round == kInitialRound ? WireType::kFloat32 : wire;
    case FrameKind::kResult: {
      const bool owned = header.sender.role == Role::kWorker ||
                         (WorkersOwn(layer) && header.round <= base_round);
      return owned || header.part != kValuesPart ? WireType::kFloat32 : wire;
    }
    case FrameKind::kFactors:
    case FrameKind::kSum:
    case FrameKind::kMean:
      return wire;
    case FrameKind::kOwned:
    case FrameKind::kAggregate:
    case FrameKind::kCopy:
      return WireType::kFloat32;
    case FrameKind::kHello:
    case FrameKind::kRefusal:
    case FrameKind::kPull:
    case FrameKind::kPullRound:
    case FrameKind::kHave:
    case FrameKind::kVote:
    case FrameKind::kVerdict:
      return WireType::kNone;
  }
  return WireType::kNone;
}

std::vector<WorkerSeat> FirstWorkers(int count) {
  std::vector<WorkerSeat> workers;
  for (int rank = 0; rank < count; ++rank) workers.push_back({rank, 0});
  return workers;
}

std::vector<ShardHolders> FirstHolders(int shards, bool backup) {
  std::vector<ShardHolders> holders;
  for (int shard = 0; shard < shards; ++shard) {
    holders.push_back({shard, backup ? (shard + 1) % shards : -1, backup});
  }
  return holders;
}

absl::StatusOr<JobPtr> MakeJob(Job job, int shards) {
  NEREUS_RETURN_IF_ERROR(CheckWorkers(job));
  NEREUS_RETURN_IF_ERROR(CheckLeavers(job));
  NEREUS_RETURN_IF_ERROR(CheckCount("shards", shards, kServersMax));
  if (job.holders.empty()) {
    job.holders = FirstHolders(shards, job.options.backup);
  }
  NEREUS_RETURN_IF_ERROR(CheckHolders(job, shards));
  NEREUS_RETURN_IF_ERROR(ValidateLayers(job.layers));
  NEREUS_RETURN_IF_ERROR(job.options.Validate());
  if (job.routes.size() != job.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", job.routes.size(), " routes for ",
                     job.layers.size(), " layers"));
  }
  for (size_t i = 0; i < job.layers.size(); ++i) {
    NEREUS_RETURN_IF_ERROR(CheckRoute(job.layers[i], job.routes[i]));
  }
  for (size_t i = 0; i < job.layers.size() && job.partial(); ++i) {
    if (!PassesServers(job.routes[i].scheme)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan sends ", DescribeLayer(job.layers[i]), " by ",
        SchemeName(job.routes[i].scheme), ", past the servers: ",
        "that needs everybody, not quorum ", QuorumName(job.options.quorum)));
  }
  NEREUS_RETURN_IF_ERROR(CheckSteps(job));
  NEREUS_RETURN_IF_ERROR(CheckVerdicts(job));
  if (job.state_arrays < 0 || job.state_arrays > kStateArraysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_arrays is ", job.state_arrays, ", must be in [0, ",
                     kStateArraysMax, "]"));
  }
  if (job.owner != -1 && !IsWorkerOrLeaver(job, job.owner)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the owner is worker ", job.owner, ", who is no member"));
  }
  int before = -1;
  for (const FinishedRound& finished : job.finished_rounds) {
    NEREUS_RETURN_IF_ERROR(CheckFinished(job, finished));
    if (finished.layer <= before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the finished round of layer ", finished.layer,
          " comes after that of layer ", before, ": layers must ascend"));
    }
    before = finished.layer;
  }
  if (job.options.optimizer_place == OptimizerPlace::kServer) {
    job.state_arrays = OptimizerStateCount(job.options.optimizer.rule);
  }
  NEREUS_ASSIGN_OR_RETURN(job.placement, Placement::Make(job.layers, shards));
  return std::make_shared<const Job>(std::move(job));
}

FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round) {
  FrameHeader header;
  header.kind = kind;
  header.job = job.id;
  header.epoch = job.epoch;
  header.layer = static_cast<uint32_t>(layer);
  header.chunk = static_cast<uint32_t>(chunk);
  header.round = round;
  header.sender = sender;
  return header;
}

absl::Status CheckFrame(const Job& job, PeerId from,
                        const FrameHeader& header) {
  if (header.job != job.id) return Wrong(header, "job", header.job, job.id);
  if (header.epoch != job.epoch) {
    return Wrong(header, "epoch", header.epoch, job.epoch);
  }
  if (header.sender != from) {
    return Wrong(header, "the sender", PeerName(header.sender), PeerName(from));
  }
  if (!IsMember(job, from)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": not one of the job's ", job.worker_count(),
        " workers and ", job.shards(), " shards in epoch ", job.epoch));
  }
  if (header.layer >= job.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": the model has ",
                     job.layers.size(), " layers"));
  }
  if (header.round < kInitialRound || header.round > kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": rounds are in [", kInitialRound,
                     ", ", kStepMax, "]"));
  }
  const WireType wire = job.WireOf(header);
  if (header.wire != wire) {
    return Wrong(header, "the wire type", static_cast<int>(header.wire),
                 static_cast<int>(wire));
  }
  return absl::OkStatus();
}

absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header) {
  const auto chunks =
      job.placement.layer_chunks(static_cast<int>(header.layer));
  if (header.chunk >= chunks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": layer ", job.layers[header.layer].name,
        " has ", chunks.size(), " chunks"));
  }
  return chunks[header.chunk];
}

}  // namespace nereus
