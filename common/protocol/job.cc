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
constexpr int64_t kFactorElementsMax = int64_t{1} << 32;

absl::Status CheckFactors(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kFullyConnected) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan sends ", DescribeLayer(layer),
                     " by factors, which only fc layers have"));
  }
  const int64_t rows_max = kFactorElementsMax / std::max(layer.m, layer.n);
  if (layer.rows <= rows_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the plan sends ", DescribeLayer(layer), " by factors of more than ",
      kFactorElementsMax, " elements each"));
}

absl::Status CheckCount(absl::string_view name, int64_t count, int64_t max) {
  if (count >= 1 && count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", count, ", must be in [1, ", max, "]"));
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

absl::StatusOr<JobPtr> MakeJob(uint64_t id, uint64_t epoch, int workers,
                               int shards, std::vector<LayerSpec> layers,
                               std::vector<Route> routes, JobOptions options) {
  NEREUS_RETURN_IF_ERROR(CheckCount("workers", workers, kWorkersMax));
  NEREUS_RETURN_IF_ERROR(CheckCount("shards", shards, kServersMax));
  NEREUS_RETURN_IF_ERROR(ValidateLayers(layers));
  NEREUS_RETURN_IF_ERROR(options.optimizer.Validate());
  if (routes.size() != layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", routes.size(), " routes for ",
                     layers.size(), " layers"));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (routes[i].scheme == Scheme::kFactor) {
      NEREUS_RETURN_IF_ERROR(CheckFactors(layers[i]));
    }
  }
  NEREUS_ASSIGN_OR_RETURN(Placement placement, Placement::Make(layers, shards));
  return std::make_shared<const Job>(Job{id, epoch, workers, std::move(layers),
                                         std::move(routes),
                                         std::move(placement), options});
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
  const int members = from.role == Role::kWorker ? job.workers : job.shards();
  if (from.rank < 0 || from.rank >= members) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": the job has ", job.workers,
                     " workers and ", job.shards(), " shards"));
  }
  if (header.layer >= job.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": the model has ",
                     job.layers.size(), " layers"));
  }
  const WireType wire =
      header.kind == FrameKind::kPull ? WireType::kNone : WireType::kFloat32;
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
