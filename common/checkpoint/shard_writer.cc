#include "common/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/checkpoint/safetensors.h"
#include "common/plan/cost_model.h"

// Writer of a shard's file. WriteShard checks its arguments, joins neighbouring
// chunks to runs (MakeRuns), lists the tensors and buffers of each run
// (AddRun), computes the length and the checksum of all buffers, hands the
// buffers to the storage, and reads the file back (ReadBack). It copies no
// values: the storage reads the shard's own memory. So callers must not change
// this memory during the call.

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Neighbouring chunks of one layer that have equally many arrays of state. A
// run becomes one tensor of parameters, and one tensor for each array of state.
struct Run {
  int32_t layer = 0;                     // Index of the layer.
  int64_t first = 0;                     // First element.
  int64_t last = 0;                      // Element after the last one.
  int states = 0;                        // Number of arrays of state.
  absl::Span<const ChunkValues> chunks;  // Chunks of the run.
};

// Returns the number of arrays of state that a chunk has. Errors:
// kInvalidArgument, the number is neither 0 nor `states`.
absl::StatusOr<int> StatesOf(const ChunkValues& chunk, int states,
                             const std::string& where) {
  if (chunk.state.bytes() == 0) return 0;
  const int64_t bytes = states * chunk.length * kFloatBytes;
  if (chunk.state.bytes() == bytes) return states;
  return InvalidArgumentError(where, " has ", chunk.state.bytes(),
                              " bytes of state, ", states, " arrays mean ",
                              bytes, " or none");
}

// Checks a chunk against the model.
absl::Status CheckChunk(const ChunkValues& chunk,
                        absl::Span<const LayerSpec> layers) {
  if (chunk.layer < 0 || static_cast<size_t>(chunk.layer) >= layers.size()) {
    return InvalidArgumentError("a chunk is of layer ", chunk.layer,
                                ", the model has ", layers.size());
  }
  const LayerSpec& layer = layers[chunk.layer];
  if (chunk.offset < 0 || chunk.length < 1 ||
      chunk.offset > layer.parameters - chunk.length) {
    return InvalidArgumentError(
        "a chunk of layer ", layer.name, " has elements from ", chunk.offset,
        ", length ", chunk.length, "; the layer has ", layer.parameters);
  }
  if (chunk.parameters.bytes() != chunk.length * kFloatBytes) {
    return InvalidArgumentError(
        "a chunk of layer ", layer.name, " has ", chunk.parameters.bytes(),
        " bytes of parameters, its length ", chunk.length, " means ",
        chunk.length * kFloatBytes);
  }
  return absl::OkStatus();
}

// Joins chunks to runs. Errors: kInvalidArgument, a chunk does not fit its
// layer, its buffers or the chunk before it.
absl::StatusOr<std::vector<Run>> MakeRuns(
    absl::Span<const LayerSpec> layers, int state_arrays,
    absl::Span<const ChunkValues> chunks) {
  std::vector<Run> runs;
  size_t begin = 0;  // Index of the last run's first chunk.
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkValues& chunk = chunks[i];
    NEREUS_TRY(CheckChunk(chunk, layers));
    const std::string where = absl::StrCat(
        "the chunk at ", chunk.offset, " of layer ", layers[chunk.layer].name);
    const int states = NEREUS_TRY(StatesOf(chunk, state_arrays, where));
    if (!runs.empty()) {
      Run& run = runs.back();
      if (chunk.layer < run.layer ||
          (chunk.layer == run.layer && chunk.offset < run.last)) {
        return InvalidArgumentError(where, " comes after one that ends at ",
                                    run.last, " of layer ",
                                    layers[run.layer].name);
      }
      if (chunk.layer == run.layer && chunk.offset == run.last &&
          states == run.states) {
        run.last += chunk.length;
        run.chunks = chunks.subspan(begin, i + 1 - begin);
        continue;
      }
    }
    begin = i;
    runs.push_back({chunk.layer, chunk.offset, chunk.offset + chunk.length,
                    states, chunks.subspan(i, 1)});
  }
  return runs;
}

// Contents of a shard's file.
struct Contents {
  // Tensors, in the order of their data.
  std::vector<SafetensorsTensor> tensors;
  // Bytes of the file; the first buffer is the header.
  std::vector<Buffer> buffers;
};

// Adds the tensors of a run to `contents`. ChunkValues::state has one array
// after the other, so a tensor of one array takes a slice of each chunk's
// state.
void AddRun(const Run& run, const LayerSpec& layer,
            absl::Span<const std::string> states, Contents& contents) {
  TensorName name = {layer.name, run.last - run.first == layer.parameters,
                     run.first, run.last, ""};
  SafetensorsTensor tensor;
  tensor.shape = {run.last - run.first};
  if (name.whole) name.first = name.last = 0;
  if (name.whole && layer.m * layer.n == layer.parameters &&
      layer.kind != LayerKind::kVector) {
    tensor.shape = {layer.m, layer.n};
  }
  tensor.name = EncodeTensorName(name);
  contents.tensors.push_back(tensor);
  for (const ChunkValues& chunk : run.chunks) {
    contents.buffers.push_back(chunk.parameters);
  }
  for (int i = 0; i < run.states; ++i) {
    name.state = states[i];
    tensor.name = EncodeTensorName(name);
    contents.tensors.push_back(tensor);
    for (const ChunkValues& chunk : run.chunks) {
      const int64_t bytes = chunk.length * kFloatBytes;
      contents.buffers.push_back(chunk.state.Slice(i * bytes, bytes));
    }
  }
}

// Checks that the round has no manifest. Errors: kAlreadyExists, it has one: a
// new file would then damage a complete checkpoint.
absl::Status CheckNotComplete(Storage& storage, int64_t round) {
  const std::string manifest = ManifestName(round);
  const auto bytes = storage.FileBytes(manifest);
  if (bytes.ok()) {
    return AlreadyExistsError(manifest,
                              " exists: the checkpoint is complete already");
  }
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  return bytes.status();
}

// Number of bytes of a file that are read back at a time.
constexpr int64_t kReadBlockBytes = int64_t{1} << 20;

// Compares a file that was just written with its checksum.
absl::Status ReadBack(Storage& storage, const std::string& name,
                      const ManifestFile& written) {
  storage.ForgetCached(name);
  const Buffer block =
      Buffer::Allocate(std::min(written.bytes, kReadBlockBytes));
  uint32_t crc = 0;
  for (int64_t offset = 0; offset < written.bytes; offset += block.bytes()) {
    const Buffer part =
        block.Slice(0, std::min(block.bytes(), written.bytes - offset));
    NEREUS_TRY(storage.ReadFile(name, offset, part));
    crc = ExtendCrc32c(crc, part.data(), part.bytes());
  }
  if (crc == written.crc32c) return absl::OkStatus();
  return DataLossError(name, " was written with CRC-32C ",
                       absl::Hex(written.crc32c, absl::kZeroPad8), ", and has ",
                       absl::Hex(crc, absl::kZeroPad8),
                       " when it is read back: the disk or the memory of this "
                       "host changes bytes");
}

absl::Status CheckFile(const ShardFile& file) {
  if (file.shards < 1 || file.shards > kServersMax || file.shard < 0 ||
      file.shard >= file.shards) {
    return InvalidArgumentError("a checkpoint's file is of shard ", file.shard,
                                " of ", file.shards, ", at most ", kServersMax);
  }
  if (file.round < 0 || file.round > kCheckpointRoundMax) {
    return InvalidArgumentError("a checkpoint is of round ", file.round,
                                ", not from 0 to ", kCheckpointRoundMax);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ManifestFile> WriteShard(Storage& storage, const ShardFile& file,
                                        absl::Span<const LayerSpec> layers,
                                        absl::Span<const std::string> states,
                                        absl::Span<const ChunkValues> chunks) {
  NEREUS_TRY(CheckFile(file));
  NEREUS_TRY(ValidateLayers(layers));
  const std::vector<Run> runs =
      NEREUS_TRY(MakeRuns(layers, static_cast<int>(states.size()), chunks));
  Contents contents;
  contents.buffers.emplace_back();
  for (const Run& run : runs) AddRun(run, layers[run.layer], states, contents);

  const std::map<std::string, std::string> metadata = {
      {"writer", absl::StrCat("nereus ", kVersion)},
      {"round", absl::StrCat(file.round)},
      {"shard", absl::StrCat(file.shard)},
      {"shards", absl::StrCat(file.shards)},
      {"epoch", absl::StrCat(file.epoch)},
  };
  std::string header =
      NEREUS_TRY(EncodeSafetensorsHeader(contents.tensors, metadata));
  contents.buffers.front() = Buffer::View(header.data(), std::ssize(header));

  ManifestFile written;
  written.name = ShardFileName(file);
  for (const Buffer& buffer : contents.buffers) {
    written.bytes += buffer.bytes();
    written.crc32c =
        ExtendCrc32c(written.crc32c, buffer.data(), buffer.bytes());
  }
  NEREUS_TRY(CheckNotComplete(storage, file.round));
  const std::string name =
      absl::StrCat(CheckpointFolder(file.round), "/", written.name);
  NEREUS_TRY(storage.WriteFile(name, contents.buffers));
  NEREUS_TRY(ReadBack(storage, name, written));
  return written;
}

}  // namespace nereus
