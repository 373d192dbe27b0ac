#include "common/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

// Reading of checkpoints. Open reads each file's header (ReadHeader), makes a
// Part for each tensor (AddTensor) and sorts the parts (SortParts). ReadValues
// then reads each array from the parts that have it (ForPieces). Before it
// reads values of a file for the first time, it compares the file's checksum
// (CheckContents). ReadInto reads whole files once instead. A file may be torn,
// from another job, or hostile. So each name, range and length in a file is
// compared with the manifest before it is used.

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

template <typename Each>
absl::Status CheckpointReader::ReadBlocks(int file, Each each) const {
  const std::string name = FileName(file);
  const ManifestFile& entry = manifest_.files[file];
  const Buffer memory =
      Buffer::Allocate(std::min(entry.bytes, kReadBlockBytes));
  uint32_t crc = 0;
  for (int64_t begin = 0; begin < entry.bytes; begin += memory.bytes()) {
    const Buffer block =
        memory.Slice(0, std::min(memory.bytes(), entry.bytes - begin));
    const absl::Status status = storage_->ReadFile(name, begin, block);
    if (!status.ok()) return DamageOf(name, status);
    crc = ExtendCrc32c(crc, block.data(), block.bytes());
    each(begin, block);
  }
  if (crc == entry.crc32c) return absl::OkStatus();
  return DataLossError(name, " has CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
                       ", the manifest says ",
                       absl::Hex(entry.crc32c, absl::kZeroPad8));
}

absl::Status CheckpointReader::CheckContents(int file) {
  if (checked_[file]) return absl::OkStatus();
  NEREUS_TRY(ReadBlocks(file, [](int64_t, const Buffer&) {}));
  // From now on this reader would not notice a change of the file. But no
  // server changes a file of a complete checkpoint (CheckNotComplete in
  // shard_writer.cc).
  checked_[file] = true;
  return absl::OkStatus();
}

template <typename Each>
absl::Status CheckpointReader::ForPieces(int layer, int array, int64_t offset,
                                         int64_t length, const Buffer& into,
                                         Each each) const {
  const std::vector<Part>& sorted = parts(layer, array);
  auto part = absl::c_upper_bound(
      sorted, offset,
      [](int64_t element, const Part& p) { return element < p.last; });
  const int64_t end = offset + length;
  int64_t next = offset;  // First element without a piece yet.
  for (; next < end; ++part) {
    if (part == sorted.end() || part->first > next) {
      const int64_t missing_end =
          part == sorted.end() ? end : std::min(end, part->first);
      return NotFoundError(CheckpointFolder(manifest_.round),
                           " has no elements ", next, " to ", missing_end,
                           " of ", ArrayName(layer, array));
    }
    const int64_t last = std::min(end, part->last);
    const Piece piece = {
        part->data_begin + (next - part->first) * kFloatBytes,
        into.Slice((next - offset) * kFloatBytes, (last - next) * kFloatBytes)};
    NEREUS_TRY(each(part->file, piece));
    next = last;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckWanted(int layer, int64_t offset,
                                           int64_t length,
                                           int state_arrays) const {
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
  return absl::OkStatus();
}

absl::StatusOr<ChunkValues> CheckpointReader::ReadValues(int layer,
                                                         int64_t offset,
                                                         int64_t length,
                                                         int state_arrays) {
  NEREUS_TRY(CheckWanted(layer, offset, length, state_arrays));
  const int64_t bytes = length * kFloatBytes;
  ChunkValues values;
  values.layer = layer;
  values.offset = offset;
  values.length = length;
  values.parameters = Buffer::Allocate(bytes);
  values.state = Buffer::Allocate(state_arrays * bytes);
  const auto read = [this](int file, const Piece& piece) -> absl::Status {
    NEREUS_TRY(CheckContents(file));
    const absl::Status status =
        storage_->ReadFile(FileName(file), piece.begin, piece.into);
    return status.ok() ? status : DamageOf(FileName(file), status);
  };
  NEREUS_TRY(ForPieces(layer, 0, offset, length, values.parameters, read));
  for (int i = 0; i < state_arrays; ++i) {
    NEREUS_TRY(ForPieces(layer, i + 1, offset, length,
                         values.state.Slice(i * bytes, bytes), read));
  }
  return values;
}

absl::StatusOr<std::vector<std::vector<CheckpointReader::Piece>>>
CheckpointReader::PiecesOf(absl::Span<const ChunkValues> wanted) const {
  std::vector<std::vector<Piece>> pieces(manifest_.files.size());
  const auto add = [&](int file, const Piece& piece) {
    pieces[file].push_back(piece);
    return absl::OkStatus();
  };
  for (const ChunkValues& values : wanted) {
    const int64_t bytes = values.length * kFloatBytes;
    const int arrays =
        bytes > 0 ? static_cast<int>(values.state.bytes() / bytes) : 0;
    NEREUS_TRY(CheckWanted(values.layer, values.offset, values.length, arrays));
    NEREUS_TRY(ForPieces(values.layer, 0, values.offset, values.length,
                         values.parameters, add));
    for (int i = 0; i < arrays; ++i) {
      NEREUS_TRY(ForPieces(values.layer, i + 1, values.offset, values.length,
                           values.state.Slice(i * bytes, bytes), add));
    }
  }
  for (std::vector<Piece>& of_file : pieces) {
    absl::c_sort(of_file, [](const Piece& a, const Piece& b) {
      return a.begin < b.begin;
    });
  }
  return pieces;
}

absl::StatusOr<int64_t> CheckpointReader::BytesToRead(
    absl::Span<const ChunkValues> wanted) const {
  const auto pieces = NEREUS_TRY(PiecesOf(wanted));
  int64_t bytes = 0;
  for (size_t file = 0; file < pieces.size(); ++file) {
    if (!pieces[file].empty()) bytes += manifest_.files[file].bytes;
  }
  return bytes;
}

absl::Status CheckpointReader::ReadInto(absl::Span<const ChunkValues> wanted,
                                        const Progress& progress) {
  const auto pieces = NEREUS_TRY(PiecesOf(wanted));
  for (size_t file = 0; file < pieces.size(); ++file) {
    if (pieces[file].empty()) continue;
    auto first = pieces[file].begin();  // First piece that lacks bytes.
    NEREUS_TRY(ReadBlocks(
        static_cast<int>(file), [&](int64_t begin, const Buffer& block) {
          const int64_t end = begin + block.bytes();
          for (auto piece = first;
               piece != pieces[file].end() && piece->begin < end; ++piece) {
            const int64_t from = std::max(begin, piece->begin);
            const int64_t to = std::min(end, piece->end());
            if (from >= to) continue;
            std::memcpy(piece->into.data() + (from - piece->begin),
                        block.data() + (from - begin),
                        static_cast<size_t>(to - from));
          }
          while (first != pieces[file].end() && first->end() <= end) ++first;
          progress(block.bytes());
        }));
    checked_[file] = true;
  }
  return absl::OkStatus();
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

absl::Status CheckpointReader::Verify(int threads, const Progress& progress) {
  for (size_t i = 0; i < manifest_.layers.size(); ++i) {
    const int layer = static_cast<int>(i);
    for (int array = 0; array <= StateArrays(layer); ++array) {
      NEREUS_TRY(CheckCoverage(layer, array));
    }
  }
  const int count = static_cast<int>(manifest_.files.size());
  std::vector<absl::Status> found(count);
  std::atomic<int> next = 0;
  const auto compare = [&] {
    for (int file = next++; file < count; file = next++) {
      found[file] = ReadBlocks(file, [&](int64_t, const Buffer& block) {
        if (progress != nullptr) progress(block.bytes());
      });
      const bool is_enough = !found[file].ok();
      if (is_enough) next = count;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < std::min(threads, count); ++i) {
    others.emplace_back(compare);
  }
  compare();
  for (std::thread& other : others) other.join();
  for (const absl::Status& each : found) NEREUS_TRY(absl::Status(each));
  checked_.assign(count, true);
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(Storage& storage, const Manifest& manifest,
                              int threads,
                              const CheckpointReader::Progress& progress) {
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(&storage, manifest));
  return reader.Verify(threads, progress);
}

}  // namespace nereus
