#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Reads values of one checkpoint by layer and range, from whichever files have
// them. So a job that goes on from the checkpoint may have another number of
// shards than the job that wrote it.
//
// Opening reads the headers of all files. The first use of a file reads it once
// in blocks of kReadBlockBytes, to compare its checksum; values are then read
// straight into their buffers. So a shard reads the header of each file, but
// the data of only those files that have values for the shard. Without the
// checksum, a damaged disk would change a model silently.
//
// Not thread-safe: one thread, which blocks for as long as the storage takes.
// Memory: one header or one block at a time, a few words for each tensor, and
// the values that ReadValues returns.
//
// Errors of all methods: those of Storage; kDataLoss, a file that is missing,
// damaged or different from the manifest; the message names the file.
class CheckpointReader {
 public:
  // Bytes that are read at a time to compare a checksum.
  static constexpr int64_t kReadBlockBytes = int64_t{1} << 20;

  // Opens a checkpoint. `storage` is not owned and must outlive this. Errors:
  // also kDataLoss, tensors that overlap, fit no layer of the manifest or have
  // an invalid name; kInvalidArgument, the manifest is not valid
  // (Manifest::Validate).
  static absl::StatusOr<CheckpointReader> Open(Storage* storage,
                                               Manifest manifest);

  // Manifest of the checkpoint.
  const Manifest& manifest() const { return manifest_; }

  // Returns the number of arrays of optimizer state that the checkpoint has for
  // a layer: 0 if no file has state of the layer, else the number in the
  // manifest. REQUIRES: `layer` is a layer of the manifest.
  int StateArrays(int layer) const;

  // Returns the values of elements [offset, offset + length) of a layer, in new
  // memory, with the first `state_arrays` arrays of state.
  //
  // Errors: also kInvalidArgument, a range or layer that the manifest does not
  // have, or more arrays than it has; kNotFound, elements or their state are
  // missing: the message names the first missing ones.
  absl::StatusOr<ChunkValues> ReadValues(int layer, int64_t offset,
                                         int64_t length, int state_arrays);

  // Compares the checksums of all files, and checks that every element of every
  // layer exists, and its state if the layer has any. Errors: also kDataLoss
  // for missing elements.
  absl::Status Verify();

 private:
  // Place of elements [first, last) of one array of one layer.
  struct Part {
    int64_t first = 0;  // First element.
    int64_t last = 0;   // Element after the last one.
    int32_t file = 0;   // Index in manifest_.files.
    // Byte of the file at which element `first` begins.
    int64_t data_begin = 0;
  };

  // REQUIRES: `manifest` is valid.
  CheckpointReader(Storage* storage, Manifest manifest);

  // Returns the parts of one array. Array 0 is the parameters, array i > 0 is
  // number i - 1 of the state.
  std::vector<Part>& parts(int layer, int array) {
    return parts_[layer * arrays_ + array];
  }
  const std::vector<Part>& parts(int layer, int array) const {
    return parts_[layer * arrays_ + array];
  }

  // Reads the header of a file and adds its tensors.
  absl::Status ReadHeader(int file);
  // Adds the part that a tensor contains. `data_offset`: first byte of the
  // file's data.
  absl::Status AddTensor(int file, const SafetensorsTensor& tensor,
                         int64_t data_offset);
  // Sorts all parts, and refuses parts that overlap.
  absl::Status SortParts();
  // Compares the checksum of a file, once.
  absl::Status CheckContents(int file);
  // Checks that the parts of an array have all its elements.
  absl::Status CheckCoverage(int layer, int array) const;
  // Reads elements [offset, offset + length) of an array from the parts that
  // have them.
  absl::Status ReadArray(int layer, int array, int64_t offset, int64_t length,
                         const Buffer& into);

  // Returns the name of a file in the storage.
  std::string FileName(int file) const;
  // Returns "layer fc6" or "velocity of layer fc6", for messages.
  std::string ArrayName(int layer, int array) const;

  Storage* storage_;                 // Not owned.
  Manifest manifest_;                // Content of the checkpoint.
  std::vector<std::string> states_;  // Names of the arrays of state.
  int arrays_;                       // Number of arrays, parameters and state.
  // Index of each layer in the manifest.
  absl::flat_hash_map<std::string, int> layer_by_name_;
  // Parts of each layer and array, sorted by `first`.
  std::vector<std::vector<Part>> parts_;
  // True for each file that CheckContents has compared.
  std::vector<bool> checked_;
};

// Opens a checkpoint and verifies it. Errors: those of Open and Verify.
absl::Status VerifyCheckpoint(Storage& storage, const Manifest& manifest);

}  // namespace nereus
