#include "common/protocol/job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/protocol/job_checks.h"

// Rules that a member derives from its job. Order to read: first MakeJob, which
// checks and completes a job (the checks are in job_checks.cc); then the
// functions of Job, each of which is a rule for all members; last the functions
// that make, cut and check frames. If two members followed different rules, a
// peer would refuse a frame or, worse, replicas would drift apart without an
// error.

namespace nereus {

static_assert(kChunkBytesMin % kFramePayloadBytesMax == 0);

namespace {

// Returns the error for a field of a header that differs from `expected`.
template <typename T>
absl::Status Wrong(const FrameHeader& header, absl::string_view field,
                   const T& found, const T& expected) {
  return InvalidArgumentError(DescribeFrame(header), ": ", field, " is ", found,
                              ", expected ", expected);
}

// Returns the number of elements in a block: block_elements or, with
// kBlockAuto, the smallest power of two from kBlockElementsMin to 2^15 that
// makes at most 1,000 blocks; 2^15 if none does. Workers send the norms of
// 1,000 blocks in little time, and 1,000 blocks are enough to choose a small
// share of a gradient.
int64_t BlockLength(const SparsityOptions& options, int64_t elements) {
  if (options.block_elements != kBlockAuto) return options.block_elements;
  constexpr int64_t kBlocks = 1000;
  constexpr int64_t kLengthMax = int64_t{1} << 15;
  int64_t length = kBlockElementsMin;
  while (length < kLengthMax && length * kBlocks < elements) length *= 2;
  return length;
}

// Adds the block layer to a sparse job, and sets `pool`. Errors:
// kInvalidArgument, a layer goes by factors, there are too many blocks, or the
// layers are not valid together with the block layer.
absl::Status AddBlocks(Job& job) {
  for (size_t i = 0; i < job.layers.size(); ++i) {
    if (job.routes[i].scheme != Scheme::kFactor) continue;
    return InvalidArgumentError(
        "the plan sends ", DescribeLayer(job.layers[i]),
        " by factors, which have no blocks, in a job with sparsity ",
        job.options.sparsity.share);
  }
  // The pool has the layers in backward order: the last layer comes first.
  job.pool.offsets.resize(job.layers.size());
  int64_t elements = 0;
  for (size_t i = job.layers.size(); i > 0; --i) {
    job.pool.offsets[i - 1] = elements;
    elements += job.layers[i - 1].parameters;
  }
  job.pool.block_length = BlockLength(job.options.sparsity, elements);
  const int64_t length = job.pool.block_length;
  const int64_t blocks = (elements + length - 1) / length;
  if (blocks > kChunkElementsMax) {
    return InvalidArgumentError("the model's ", elements, " parameters make ",
                                blocks, " blocks of ", length,
                                " values, more than ", kChunkElementsMax,
                                ": choose longer blocks (--block)");
  }
  LayerSpec layer;
  layer.name = "nereus.blocks";
  layer.kind = LayerKind::kVector;
  layer.rows = 1;
  layer.m = 1;
  layer.n = blocks;
  layer.parameters = blocks;
  job.pool.layer = static_cast<int>(job.layers.size());
  job.layers.push_back(std::move(layer));
  job.routes.push_back({Scheme::kServer, WireType::kFloat32});
  return ValidateLayers(job.layers);
}

}  // namespace

absl::Span<const LayerSpec> Job::model() const {
  return absl::MakeConstSpan(layers).first(pool.layer >= 0 ? pool.layer
                                                           : layers.size());
}

int64_t Job::BlocksIn(int64_t round) const {
  const int64_t blocks = block_count();
  const SparsityOptions& sparsity = options.sparsity;
  if (round < sparsity.dense_steps) return blocks;
  const double chosen = (1 - sparsity.share) * static_cast<double>(blocks);
  return std::max<int64_t>(1, std::llround(chosen));
}

// If a block begins before the chunk and ends in it, the chunk's first frame
// has the part of this block that lies in the chunk.
FrameGrid Job::GridOf(const Chunk& chunk) const {
  if (!IsSparse(chunk.layer)) return FrameGrid(chunk.length);
  const int64_t offset = pool.offsets[chunk.layer] + chunk.offset;
  return FrameGrid(chunk.length, pool.block_length, offset % pool.block_length);
}

int64_t Job::FirstBlock(const Chunk& chunk) const {
  return (pool.offsets[chunk.layer] + chunk.offset) / pool.block_length;
}

std::string Job::NameOf(PeerId member) const {
  if (member.role == Role::kShard) return PeerName(member);
  const auto found = crew.worker_names.find(member.rank);
  return found == crew.worker_names.end()
             ? PeerName(member)
             : absl::StrCat("worker ", found->second);
}

bool Job::Holds(int server) const {
  const auto holds = [&](const ShardServers& each) {
    return each.primary == server || each.backup == server;
  };
  return server >= 0 && absl::c_any_of(shard_servers, holds);
}

bool Job::IsMember(PeerId peer) const {
  if (peer.role == Role::kShard) return Holds(peer.rank);
  return PositionOf(peer.rank) >= 0 ||
         std::binary_search(crew.left_workers.begin(), crew.left_workers.end(),
                            peer.rank);
}

int Job::PositionOf(int rank) const {
  // Ranks are positions until a worker leaves. Each frame asks.
  if (rank >= 0 && rank < worker_count() && workers[rank].rank == rank) {
    return rank;
  }
  const auto found = absl::c_lower_bound(
      workers, rank,
      [](const EpochWorker& each, int wanted) { return each.rank < wanted; });
  if (found == workers.end() || found->rank != rank) return -1;
  return static_cast<int>(found - workers.begin());
}

// First steps ascend with positions. So a binary search finds the first worker
// that does not contribute; all workers before it contribute.
int Job::ContributorsOf(int64_t round) const {
  const auto first_later = absl::c_upper_bound(
      workers, round, [](int64_t wanted, const EpochWorker& each) {
        return wanted < each.first_step;
      });
  return static_cast<int>(first_later - workers.begin());
}

// Seating gives each chunk a slot by its length. If a layer goes without
// servers, all its units are about equally long. So unit 0 has the slot of the
// layer's first chunk, and each further unit has the next slot.
int Job::SlotOf(int layer, int64_t unit, int local_count) const {
  const int64_t slot = UsesServers(routes[layer].scheme)
                           ? seating.SlotOf(layer, unit)
                           : seating.SlotOf(layer, 0) + unit;
  return static_cast<int>(slot % local_count);
}

int32_t Job::CarrierOf(int layer, int64_t unit, int64_t round, int host) const {
  const absl::Span<const int32_t> local = LineupOf(round).at(host);
  return local[SlotOf(layer, unit, static_cast<int>(local.size()))];
}

// All members draw the same worker, because they compute it from the job's id
// and the round: by the output function of SplitMix64 (Steele et al., "Fast
// splittable pseudorandom number generators").
int Job::InitiatorOf(int64_t round) const {
  uint64_t drawn = id + static_cast<uint64_t>(round) * 0x9e3779b97f4a7c15;
  drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9;
  drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111eb;
  drawn ^= drawn >> 31;
  const auto contributors = static_cast<uint64_t>(ContributorsOf(round));
  return static_cast<int>(drawn % contributors);
}

// In this epoch members make no checkpoint of the base round or of an earlier
// round: these rounds were over before the epoch began.
bool Job::IsCheckpoint(int64_t round) const {
  if (round <= history.base_round) return false;
  const int64_t every = options.checkpoint_every;
  return round == checkpoint_round || (every > 0 && (round + 1) % every == 0);
}

std::optional<int64_t> Job::LastCheckpoint(int64_t round) const {
  int64_t last = checkpoint_round <= round ? checkpoint_round : kInitialRound;
  const int64_t every = options.checkpoint_every;
  if (every > 0) last = std::max(last, (round + 1) / every * every - 1);
  return last > kInitialRound ? std::optional(last) : std::nullopt;
}

bool Job::IsSaved(int64_t round) const {
  return IsCheckpoint(round) || (hands_over() && round == switch_round);
}

bool Job::MaySwitchAfter(int64_t round) const {
  return pool.layer < 0 || BlocksIn(round + 1) == block_count();
}

// Rule: gradients, and parameters that the servers update, may be rounded to
// the layer's wire type: the servers keep the exact values. Optimizer state and
// the values of worker-owned layers must not be rounded, because the receiver
// must get the same bits that the other members have.
WireType Job::WireOf(const FrameHeader& header) const {
  const auto layer = static_cast<int>(header.layer);
  const WireType wire = routes[layer].wire;
  switch (header.kind) {
    case FrameKind::kContribution:
      return header.round == kInitialRound ? WireType::kFloat32 : wire;
    case FrameKind::kResult: {
      const bool owned =
          header.sender.role == Role::kWorker ||
          (WorkersOwn(layer) && header.round <= history.base_round);
      return owned || header.part != kValuesPart ? WireType::kFloat32 : wire;
    }
    case FrameKind::kFactors:
    case FrameKind::kSum:
    case FrameKind::kMean:
      return wire;
    case FrameKind::kProbe:
      return header.part == kTrainAnswer ? WireType::kNone : WireType::kFloat32;
    case FrameKind::kOwned:
    case FrameKind::kAggregate:
    case FrameKind::kCopy:
    // The values of a kFinished frame were rounded when the workers first sent
    // them, in other frames. If they were rounded again, they could change, and
    // replicas would differ.
    case FrameKind::kFinished:
    case FrameKind::kLocal:
    case FrameKind::kOutcome:
      return WireType::kFloat32;
    case FrameKind::kHello:
    case FrameKind::kRefusal:
    case FrameKind::kAlive:
    case FrameKind::kPull:
    case FrameKind::kPullRound:
    case FrameKind::kHave:
    case FrameKind::kVote:
    case FrameKind::kVerdict:
      return WireType::kNone;
  }
  return WireType::kNone;
}

std::vector<EpochWorker> FirstWorkers(int count) {
  std::vector<EpochWorker> workers;
  for (int rank = 0; rank < count; ++rank) workers.push_back({rank, 0});
  return workers;
}

std::vector<ShardServers> FirstShardServers(int shards, bool backup) {
  std::vector<ShardServers> shard_servers;
  for (int shard = 0; shard < shards; ++shard) {
    shard_servers.push_back(
        {shard, backup ? (shard + 1) % shards : -1, backup});
  }
  return shard_servers;
}

absl::StatusOr<JobPtr> MakeJob(Job job, int shards) {
  NEREUS_TRY(CheckWorkers(job));
  NEREUS_TRY(CheckShardCount(shards));
  if (job.shard_servers.empty()) {
    job.shard_servers = FirstShardServers(shards, job.options.backup);
  }
  NEREUS_TRY(CheckShardServers(job, shards));
  // If the job is the result of an earlier MakeJob, removes its block layer:
  // AddBlocks makes it again.
  if (std::exchange(job.pool.layer, -1) >= 0) {
    job.layers.pop_back();
    job.routes.pop_back();
  }
  NEREUS_TRY(CheckPlan(job));
  if (job.options.sparsity.share > 0) NEREUS_TRY(AddBlocks(job));
  NEREUS_TRY(CheckProgress(job));
  // If the callers run the optimizer, state_arrays is what they have said. The
  // state of an optimizer on the servers follows from its rule.
  if (job.options.optimizer_place == OptimizerPlace::kServer) {
    job.state_arrays = OptimizerStateCount(job.options.optimizer.rule);
  }
  job.placement = NEREUS_TRY(
      Placement::Make(job.layers, shards, ChunkBytesOf(job.options)));
  job.seating = Seating(job.workers, job.layers, job.placement);
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

FrameHeader CutHeader(const Job& job, FrameHeader header, const FrameGrid& grid,
                      int64_t index) {
  header.wire = job.WireOf(header);
  header.offset = static_cast<uint32_t>(grid.Offset(index));
  header.payload_bytes =
      static_cast<uint32_t>(grid.Length(index) * WireBytes(header.wire));
  return header;
}

// The sender in the header must be the peer `from`: no member may send frames
// in the name of another member.
absl::Status CheckFrame(const Job& job, PeerId from,
                        const FrameHeader& header) {
  if (header.job != job.id) return Wrong(header, "job", header.job, job.id);
  if (header.epoch != job.epoch) {
    return Wrong(header, "epoch", header.epoch, job.epoch);
  }
  if (header.sender != from) {
    return Wrong(header, "the sender", PeerName(header.sender), PeerName(from));
  }
  if (!job.IsMember(from)) {
    return InvalidArgumentError(DescribeFrame(header),
                                ": the sender is not one of the job's ",
                                job.worker_count(), " workers and ",
                                job.shards(), " shards in epoch ", job.epoch);
  }
  if (header.layer >= job.layers.size()) {
    return InvalidArgumentError(DescribeFrame(header), ": the model has ",
                                job.layers.size(), " layers");
  }
  if (header.round < kInitialRound || header.round > kStepMax) {
    return InvalidArgumentError(DescribeFrame(header), ": rounds are in [",
                                kInitialRound, ", ", kStepMax, "]");
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
    return InvalidArgumentError(DescribeFrame(header), ": layer ",
                                job.layers[header.layer].name, " has ",
                                chunks.size(), " chunks");
  }
  return chunks[header.chunk];
}

}  // namespace nereus
