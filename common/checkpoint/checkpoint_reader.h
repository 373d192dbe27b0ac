#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Reads values from one checkpoint, by layer and range, from whichever files
// have them: a job may be restored onto another number of shards than wrote it.
//
// Opening reads the headers of all files. The first use of a file reads it once
// in blocks of kReadBlockBytes, to compare its checksum; values are then read
// straight to where they belong. So a shard reads only the files that have
// something for it, and no file is ever in memory as a whole.
//
// Not thread-safe: one thread, which blocks for as long as the storage takes.
//
// Errors of all methods: those of Storage; kDataLoss, a file that is damaged or
// not what the manifest says, with its name and both values.
class CheckpointReader {
 public:
  static constexpr int64_t kReadBlockBytes = int64_t{1} << 20;

  // `storage` is not owned and must outlive this. Errors: also kDataLoss,
  // tensors that overlap, fit no layer of the manifest or are unknown;
  // kInvalidArgument, as of Manifest::Validate.
  static absl::StatusOr<CheckpointReader> Open(Storage* storage,
                                               Manifest manifest);

  const Manifest& manifest() const { return manifest_; }

  // How many arrays of optimizer state the checkpoint has of a layer: 0 if it
  // has none of any element, else the manifest's. REQUIRES: `layer` is one
  // of the manifest's.
  int StateArrays(int layer) const;

  // The values of elements [offset, offset + length) of a layer, in memory of
  // their own, with the first `state_arrays` arrays of state.
  //
  // Errors: also kInvalidArgument, a range or layer that the manifest does not
  // have, or more arrays than it has; kNotFound, the range is missing, or its
  // state: the message says which elements.
  absl::StatusOr<ChunkValues> ReadValues(int layer, int64_t offset,
                                         int64_t length, int state_arrays);

  // Compares the checksums of all files, and checks that no element of any
  // layer is missing, nor of its state where it has any. Errors: also
  // kDataLoss for what is missing.
  absl::Status Verify();

 private:
  // Elements [first, last) of one array of one layer.
  struct Piece {
    int64_t first = 0;
    int64_t last = 0;
    int32_t file = 0;        // Into manifest_.files.
    int64_t data_begin = 0;  // Of element `first`, bytes into the file.
  };

  CheckpointReader(Storage* storage, Manifest manifest);

  // Array 0: parameters; array i: number i - 1 of the state.
  std::vector<Piece>& pieces(int layer, int array) {
    return pieces_[layer * arrays_ + array];
  }
  const std::vector<Piece>& pieces(int layer, int array) const {
    return pieces_[layer * arrays_ + array];
  }

  absl::Status ReadHeader(int file);
  absl::Status AddTensor(int file, const SafetensorsTensor& tensor,
                         int64_t data_offset);
  absl::Status SortPieces();
  absl::Status CheckContents(int file);
  absl::Status CheckCoverage(int layer, int array) const;
  absl::Status ReadArray(int layer, int array, int64_t offset, int64_t length,
                         const Buffer& into);

  std::string FileName(int file) const;  // In the storage.
  // "fc6" or "velocity of fc6", for messages.
  std::string ArrayName(int layer, int array) const;

  Storage* storage_;
  Manifest manifest_;
  std::vector<std::string> states_;  // What the arrays are called.
  int arrays_;                       // Parameters and state.
  absl::flat_hash_map<std::string, int> layer_by_name_;
  std::vector<std::vector<Piece>> pieces_;  // Each by `first`.
  std::vector<bool> checked_;               // By file.
};

// Opens a checkpoint and verifies it. Errors: as of Open and Verify.
absl::Status VerifyCheckpoint(Storage& storage, const Manifest& manifest);

}  // namespace nereus
