#include "common/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_name.h"

// Reading of checkpoints. Open reads each file's header (ReadHeader), makes a
// Part for each tensor (AddTensor) and sorts the parts (SortParts). ReadValues
// then reads each array from the parts that have it (ReadArray). Before it
// reads values of a file for the first time, it compares the file's checksum
// (CheckContents). A file may be torn, from another job, or hostile. So each
// name, range and length in a file is compared with the manifest before it is
// used.

namespace nereus {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Returns the bytes of a buffer as text for the decoders.
absl::string_view BytesOf(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()),
          static_cast<size_t>(buffer.bytes())};
}

// Returns kDataLoss if `status` means that a file is missing, is shorter than
// the manifest states, or cannot be decoded. Otherwise returns `status`: if the
// disk does not answer, the file is not damaged, and the caller may try again.
absl::Status DamageOf(const std::string& file, const absl::Status& status) {
  if (absl::IsNotFound(status) || absl::IsOutOfRange(status) ||
      absl::IsInvalidArgument(status)) {
    return DataLossError(file, ": ", status.message());
  }
  return status;
}

}  // namespace

CheckpointReader::CheckpointReader(Storage* storage, Manifest manifest)
    : storage_(storage),
      manifest_(std::move(manifest)),
      states_(StateNames(manifest_.optimizer_place, manifest_.optimizer.rule,
                         manifest_.state_arrays)),
      arrays_(1 + manifest_.state_arrays),
      parts_(manifest_.layers.size() * arrays_),
      checked_(manifest_.files.size()) {
  for (size_t i = 0; i < manifest_.layers.size(); ++i) {
    layer_by_name_[manifest_.layers[i].name] = static_cast<int>(i);
  }
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(Storage* storage,
                                                        Manifest manifest) {
  NEREUS_TRY(manifest.Validate());
  CheckpointReader reader(storage, std::move(manifest));
  for (size_t file = 0; file < reader.manifest_.files.size(); ++file) {
    NEREUS_TRY(reader.ReadHeader(static_cast<int>(file)));
  }
  NEREUS_TRY(reader.SortParts());
  return reader;
}

std::string CheckpointReader::FileName(int file) const {
  return absl::StrCat(CheckpointFolder(manifest_.round), "/",
                      manifest_.files[file].name);
}

std::string CheckpointReader::ArrayName(int layer, int array) const {
  const std::string& name = manifest_.layers[layer].name;
  if (array == 0) return absl::StrCat("layer ", name);
  return absl::StrCat(states_[array - 1], " of layer ", name);
}

// The length is compared first, because all later checks of offsets use it.
absl::Status CheckpointReader::ReadHeader(int file) {
  const std::string name = FileName(file);
  const ManifestFile& entry = manifest_.files[file];
  const auto bytes = storage_->FileBytes(name);
  if (!bytes.ok()) return DamageOf(name, bytes.status());
  if (*bytes != entry.bytes) {
    return DataLossError(name, " has ", *bytes, " bytes, the manifest says ",
                         entry.bytes);
  }
  const Buffer prefix =
      Buffer::Allocate(std::min(*bytes, kSafetensorsPrefixBytes));
  absl::Status status = storage_->ReadFile(name, 0, prefix);
  if (!status.ok()) return DamageOf(name, status);
  const auto header_bytes = DecodeSafetensorsPrefix(BytesOf(prefix), *bytes);
  if (!header_bytes.ok()) return DamageOf(name, header_bytes.status());
  const Buffer text = Buffer::Allocate(*header_bytes);
  status = storage_->ReadFile(name, kSafetensorsPrefixBytes, text);
  if (!status.ok()) return DamageOf(name, status);
  const auto header = DecodeSafetensorsHeader(BytesOf(text), *bytes);
  if (!header.ok()) return DamageOf(name, header.status());
  for (const SafetensorsTensor& tensor : header->tensors) {
    status = AddTensor(file, tensor, header->data_offset);
    if (!status.ok()) return DamageOf(name, status);
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::AddTensor(int file,
                                         const SafetensorsTensor& tensor,
                                         int64_t data_offset) {
  const TensorName name = NEREUS_TRY(DecodeTensorName(tensor.name));
  const auto found = layer_by_name_.find(name.layer);
  if (found == layer_by_name_.end()) {
    return InvalidArgumentError("tensor ", tensor.name, " is of layer ",
                                name.layer,
                                ", which the manifest does not have");
  }
  const int layer = found->second;
  int array = 0;
  // Array 0 is the parameters. The loop ends with array == arrays_ if no array
  // of state has this name.
  while (!name.state.empty() && ++array < arrays_ &&
         states_[array - 1] != name.state) {
  }
  if (array == arrays_) {
    return InvalidArgumentError(
        "tensor ", tensor.name, " is a state, the manifest has ",
        states_.empty() ? "none" : absl::StrJoin(states_, ", "));
  }
  const int64_t parameters = manifest_.layers[layer].parameters;
  const Part part = {name.whole ? 0 : name.first,
                     name.whole ? parameters : name.last, file,
                     data_offset + tensor.offset};
  if (part.last > parameters) {
    return InvalidArgumentError("tensor ", tensor.name, " ends at element ",
                                part.last, ", the layer has ", parameters);
  }
  if (tensor.bytes != (part.last - part.first) * kFloatBytes) {
    return InvalidArgumentError("tensor ", tensor.name, " has ", tensor.bytes,
                                " bytes, its ", part.last - part.first,
                                " elements mean ",
                                (part.last - part.first) * kFloatBytes);
  }
  parts(layer, array).push_back(part);
  return absl::OkStatus();
}

absl::Status CheckpointReader::SortParts() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::vector<Part>& sorted = parts_[i];
    absl::c_sort(
        sorted, [](const Part& a, const Part& b) { return a.first < b.first; });
    for (size_t next = 1; next < sorted.size(); ++next) {
      const Part& before = sorted[next - 1];
      const Part& part = sorted[next];
      // If two tensors have the same elements, nothing tells which one is
      // right.
      if (part.first >= before.last) continue;
      const int index = static_cast<int>(i);
      return DataLossError(FileName(part.file), " has elements from ",
                           part.first, " of ",
                           ArrayName(index / arrays_, index % arrays_), ", ",
                           FileName(before.file), " those up to ", before.last);
    }
  }
  return absl::OkStatus();
}

// A sound checkpoint has either all arrays of a layer's state or none. If some
// arrays are missing, ReadValues and Verify find this.
int CheckpointReader::StateArrays(int layer) const {
  NEREUS_CHECK(layer >= 0 &&
               static_cast<size_t>(layer) < manifest_.layers.size())
      << layer;
  for (int array = 1; array < arrays_; ++array) {
    if (!parts(layer, array).empty()) return arrays_ - 1;
  }
  return 0;
}

absl::Status CheckpointReader::CheckContents(int file) {
  if (checked_[file]) return absl::OkStatus();
  const std::string name = FileName(file);
  const ManifestFile& entry = manifest_.files[file];
  const Buffer block = Buffer::Allocate(std::min(entry.bytes, kReadBlockBytes));
  uint32_t crc = 0;
  for (int64_t offset = 0; offset < entry.bytes; offset += block.bytes()) {
    const Buffer part =
        block.Slice(0, std::min(block.bytes(), entry.bytes - offset));
    const absl::Status status = storage_->ReadFile(name, offset, part);
    if (!status.ok()) return DamageOf(name, status);
    crc = ExtendCrc32c(crc, part.data(), part.bytes());
  }
  if (crc != entry.crc32c) {
    return DataLossError(name, " has CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
                         ", the manifest says ",
                         absl::Hex(entry.crc32c, absl::kZeroPad8));
  }
  // From now on this reader would not notice a change of the file. But no
  // server changes a file of a complete checkpoint (CheckNotComplete in
  // shard_writer.cc).
  checked_[file] = true;
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadArray(int layer, int array, int64_t offset,
                                         int64_t length, const Buffer& into) {
  const std::vector<Part>& sorted = parts(layer, array);
  auto part = absl::c_upper_bound(
      sorted, offset,
      [](int64_t element, const Part& p) { return element < p.last; });
  const int64_t end = offset + length;
  int64_t next = offset;  // First element that is not read yet.
  for (; next < end; ++part) {
    if (part == sorted.end() || part->first > next) {
      const int64_t missing_end =
          part == sorted.end() ? end : std::min(end, part->first);
      return NotFoundError(CheckpointFolder(manifest_.round),
                           " has no elements ", next, " to ", missing_end,
                           " of ", ArrayName(layer, array));
    }
    NEREUS_TRY(CheckContents(part->file));
    const int64_t last = std::min(end, part->last);
    const absl::Status status = storage_->ReadFile(
        FileName(part->file),
        part->data_begin + (next - part->first) * kFloatBytes,
        into.Slice((next - offset) * kFloatBytes, (last - next) * kFloatBytes));
    if (!status.ok()) return DamageOf(FileName(part->file), status);
    next = last;
  }
  return absl::OkStatus();
}

absl::StatusOr<ChunkValues> CheckpointReader::ReadValues(int layer,
                                                         int64_t offset,
                                                         int64_t length,
                                                         int state_arrays) {
  if (layer < 0 || static_cast<size_t>(layer) >= manifest_.layers.size()) {
    return InvalidArgumentError("layer ", layer, " of a checkpoint of ",
                                manifest_.layers.size(), " layers");
  }
  const int64_t parameters = manifest_.layers[layer].parameters;
  if (offset < 0 || length < 1 || offset > parameters - length) {
    return InvalidArgumentError("elements from ", offset, ", length ", length,
                                ", of layer ", manifest_.layers[layer].name,
                                ", which has ", parameters);
  }
  if (state_arrays < 0 || state_arrays >= arrays_) {
    return InvalidArgumentError(state_arrays,
                                " arrays of state, the checkpoint has ",
                                manifest_.state_arrays);
  }
  const int64_t bytes = length * kFloatBytes;
  ChunkValues values;
  values.layer = layer;
  values.offset = offset;
  values.length = length;
  values.parameters = Buffer::Allocate(bytes);
  values.state = Buffer::Allocate(state_arrays * bytes);
  NEREUS_TRY(ReadArray(layer, 0, offset, length, values.parameters));
  for (int i = 0; i < state_arrays; ++i) {
    NEREUS_TRY(ReadArray(layer, i + 1, offset, length,
                         values.state.Slice(i * bytes, bytes)));
  }
  return values;
}

absl::Status CheckpointReader::CheckCoverage(int layer, int array) const {
  int64_t next = 0;
  const auto missing = [&](int64_t end) {
    return DataLossError(CheckpointFolder(manifest_.round), " has no elements ",
                         next, " to ", end, " of ", ArrayName(layer, array));
  };
  for (const Part& part : parts(layer, array)) {
    if (part.first > next) return missing(part.first);
    next = part.last;
  }
  const int64_t parameters = manifest_.layers[layer].parameters;
  return next < parameters ? missing(parameters) : absl::OkStatus();
}

absl::Status CheckpointReader::Verify() {
  for (size_t i = 0; i < manifest_.layers.size(); ++i) {
    const int layer = static_cast<int>(i);
    for (int array = 0; array <= StateArrays(layer); ++array) {
      NEREUS_TRY(CheckCoverage(layer, array));
    }
  }
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    NEREUS_TRY(CheckContents(static_cast<int>(file)));
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(Storage& storage, const Manifest& manifest) {
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(&storage, manifest));
  return reader.Verify();
}

}  // namespace nereus
