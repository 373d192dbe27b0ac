#include "tests/testing/test_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/shard_writer.h"

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

LayerSpec Layer(std::string name, LayerKind kind, int64_t m, int64_t n,
                int64_t parameters) {
  return {std::move(name), kind, m, n, parameters, 4};
}

void Fill(const TestCheckpoint& checkpoint, int layer, int array,
          int64_t offset, int64_t length, uint8_t* bytes) {
  for (int64_t i = 0; i < length; ++i) {
    Random random(checkpoint.round * 1000003 + layer * 10007 + array * 101 +
                  (offset + i) * 65537);
    const auto bits = static_cast<uint32_t>(random.Next());
    std::memcpy(bytes + i * kFloatBytes, &bits, sizeof(bits));
  }
}

bool SameBytes(const Buffer& a, const Buffer& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

// Calls visit(layer, offset, length) for each chunk, in order.
template <typename Visit>
void ForEachChunk(const TestCheckpoint& checkpoint, Visit visit) {
  for (size_t layer = 0; layer < checkpoint.layers.size(); ++layer) {
    const int64_t parameters = checkpoint.layers[layer].parameters;
    for (int64_t offset = 0; offset < parameters;
         offset += checkpoint.chunk_elements) {
      visit(static_cast<int>(layer), offset,
            std::min(checkpoint.chunk_elements, parameters - offset));
    }
  }
}

}  // namespace

std::vector<LayerSpec> AwkwardLayers() {
  return {
      Layer("one", LayerKind::kVector, 1, 1, 1),
      Layer("chunk", LayerKind::kFullyConnected, 2, 4, 8),
      Layer("less \"quoted\\", LayerKind::kConvolution, 7, 1, 7),
      Layer("more[0:8]", LayerKind::kFullyConnected, 3, 2, 9),
      Layer("chunk.velocity", LayerKind::kEmbedding, 5, 5, 25),
      Layer("__metadata__", LayerKind::kVector, 1, 16, 17),
      Layer("100%", LayerKind::kVector, 1, 3, 3),
  };
}

ChunkValues TestValues(const TestCheckpoint& checkpoint, int layer,
                       int64_t offset, int64_t length) {
  const int states = checkpoint.with_state ? checkpoint.state_arrays() : 0;
  const int64_t bytes = length * kFloatBytes;
  ChunkValues values = {layer, offset, length, Buffer::Allocate(bytes),
                        Buffer::Allocate(states * bytes)};
  Fill(checkpoint, layer, 0, offset, length, values.parameters.data());
  for (int i = 0; i < states; ++i) {
    Fill(checkpoint, layer, i + 1, offset, length,
         values.state.data() + i * bytes);
  }
  return values;
}

std::vector<ChunkValues> TestShardValues(const TestCheckpoint& checkpoint,
                                         int shard) {
  std::vector<ChunkValues> chunks;
  int next = 0;
  ForEachChunk(checkpoint, [&](int layer, int64_t offset, int64_t length) {
    if (next++ % checkpoint.shards != shard) return;
    chunks.push_back(TestValues(checkpoint, layer, offset, length));
  });
  return chunks;
}

absl::StatusOr<Manifest> WriteTestCheckpoint(Storage& storage,
                                             const TestCheckpoint& checkpoint) {
  Manifest manifest;
  manifest.job = "test";
  manifest.round = checkpoint.round;
  manifest.contributions_before = checkpoint.round * 2;
  manifest.optimizer.rule = checkpoint.rule;
  manifest.optimizer_place = checkpoint.place();
  manifest.state_arrays = checkpoint.state_arrays();
  manifest.layers = checkpoint.layers;
  for (int shard = 0; shard < checkpoint.shards; ++shard) {
    ManifestFile file = NEREUS_TRY(
        WriteShard(storage, {checkpoint.round, shard, checkpoint.shards},
                   checkpoint.layers, checkpoint.state_names(),
                   TestShardValues(checkpoint, shard)));
    manifest.files.push_back(std::move(file));
  }
  NEREUS_TRY(WriteManifest(storage, manifest));
  return manifest;
}

absl::Status CheckTestCheckpoint(Storage& storage, const Manifest& manifest,
                                 const TestCheckpoint& checkpoint) {
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(&storage, manifest));
  const int states = checkpoint.with_state ? checkpoint.state_arrays() : 0;
  absl::Status status;
  ForEachChunk(checkpoint, [&](int layer, int64_t offset, int64_t length) {
    if (!status.ok()) return;
    const auto values = reader.ReadValues(layer, offset, length, states);
    const ChunkValues expected = TestValues(checkpoint, layer, offset, length);
    if (!values.ok()) {
      status = values.status();
    } else if (values->layer != layer || values->offset != offset ||
               values->length != length ||
               !SameBytes(values->parameters, expected.parameters) ||
               !SameBytes(values->state, expected.state)) {
      status = InternalError("round ", checkpoint.round, ", layer ",
                             checkpoint.layers[layer].name,
                             ": other values at ", offset, ", length ", length);
    }
  });
  return status;
}

}  // namespace nereus
