#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/chunk_values.h"

namespace nereus {

// Reads values of one checkpoint by layer and range, whichever of the files has
// them. So a job that goes on from the checkpoint can have another number of
// shards than the job that wrote it.
//
// Open reads the headers of all files. When ReadValues needs a file for the
// first time, it reads the whole file once, in blocks of kReadBlockBytes, and
// compares the checksum. Without this, damage on the disk would change a model
// and give no error. Then ReadValues reads the values straight into their
// buffers. So a shard reads all headers, but the data of only those files that
// have values for this shard.
//
// Not thread-safe. All methods that read block for as long as the storage
// takes. Memory: one header or one block at a time, a few words for each
// tensor, and the values that ReadValues returns.
//
// Errors of all methods: those of Storage; kDataLoss, a file is missing,
// damaged or different from what the manifest states; the message names the
// file.
class CheckpointReader {
 public:
  // Number of bytes of a file that are read at a time to compute its checksum.
  static constexpr int64_t kReadBlockBytes = int64_t{1} << 20;

  // Opens a checkpoint. `storage` is not owned and must outlive this. Errors:
  // also kDataLoss, two tensors overlap, or a tensor belongs to no layer of the
  // manifest or has an invalid name; kInvalidArgument, the manifest is not
  // valid (Manifest::Validate).
  static absl::StatusOr<CheckpointReader> Open(Storage* storage,
                                               Manifest manifest);

  // Manifest of the checkpoint.
  const Manifest& manifest() const { return manifest_; }

  // Returns the number of arrays of optimizer state that the checkpoint has for
  // a layer: 0 if no file has state of the layer, else the number in the
  // manifest. REQUIRES: `layer` is the index of a layer of the manifest.
  int StateArrays(int layer) const;

  // Returns, in new memory, the parameters of elements [offset, offset +
  // length) of a layer, and the first `state_arrays` arrays of their state.
  //
  // Errors: also kInvalidArgument, the manifest does not have this layer, these
  // elements, or so many arrays; kNotFound, parameters or state are missing:
  // the message names the first missing elements.
  absl::StatusOr<ChunkValues> ReadValues(int layer, int64_t offset,
                                         int64_t length, int state_arrays);

  // Called after each block, with the number of bytes of the block.
  using Progress = std::function<void(int64_t bytes)>;

  // Returns the number of bytes of the files that ReadInto(wanted) reads.
  // Errors: those of ReadValues but for kDataLoss.
  absl::StatusOr<int64_t> BytesToRead(
      absl::Span<const ChunkValues> wanted) const;

  // Reads the values of `wanted` into their buffers. A buffer of state may have
  // room for some arrays only, or for none. Reads each file that has some of
  // the values once, from its begin to its end, and compares its checksum.
  // After an error the buffers are undefined. Errors: those of ReadValues.
  absl::Status ReadInto(absl::Span<const ChunkValues> wanted,
                        const Progress& progress);

  // Compares the checksums of all files, several files at a time if `threads`
  // is above 1: then the storage and `progress` must be thread-safe. Also
  // checks that the files have all elements of every layer and, if a layer has
  // state, the state of all its elements. Errors: also kDataLoss if elements
  // are missing.
  absl::Status Verify(int threads = 1, const Progress& progress = nullptr);

 private:
  // Bytes of a file that go to a buffer.
  struct Piece {
    int64_t begin = 0;  // First byte in the file.
    Buffer into;        // Memory of the bytes.
    int64_t end() const { return begin + into.bytes(); }
  };

  // Place in a file of elements [first, last) of one array of one layer.
  struct Part {
    int64_t first = 0;  // First element.
    int64_t last = 0;   // Element after the last one.
    int32_t file = 0;   // Index in manifest_.files.
    // Byte of the file at which element `first` begins.
    int64_t data_begin = 0;
  };

  // REQUIRES: `manifest` is valid.
  CheckpointReader(Storage* storage, Manifest manifest);

  // Returns the pieces of the values of `wanted`, by file, in the order of the
  // file. Errors: those of BytesToRead.
  absl::StatusOr<std::vector<std::vector<Piece>>> PiecesOf(
      absl::Span<const ChunkValues> wanted) const;

  // Returns the parts of one array of a layer. Array 0 is the parameters, and
  // array i > 0 is array i - 1 of the state.
  std::vector<Part>& parts(int layer, int array) {
    return parts_[layer * arrays_ + array];
  }
  const std::vector<Part>& parts(int layer, int array) const {
    return parts_[layer * arrays_ + array];
  }

  // Reads the header of a file and adds its tensors.
  absl::Status ReadHeader(int file);
  // Adds a part for a tensor of a file. `data_offset`: byte of the file at
  // which its data begins.
  absl::Status AddTensor(int file, const SafetensorsTensor& tensor,
                         int64_t data_offset);
  // Sorts all parts. Errors: kDataLoss, two parts overlap.
  absl::Status SortParts();
  // Compares the checksum of a file, if this has not been done before.
  absl::Status CheckContents(int file);
  // Checks that the parts of an array have all elements of the layer.
  absl::Status CheckCoverage(int layer, int array) const;
  // Checks the arguments of ReadValues.
  absl::Status CheckWanted(int layer, int64_t offset, int64_t length,
                           int state_arrays) const;
  // Calls `each`, of the form absl::Status(int file, const Piece& piece), with
  // the pieces that have elements [offset, offset + length) of an array and
  // belong to `into`, in the order of the elements.
  template <typename Each>
  absl::Status ForPieces(int layer, int array, int64_t offset, int64_t length,
                         const Buffer& into, Each each) const;
  // Reads the blocks of a file, compares their checksum, and calls `each`, of
  // the form void(int64_t begin, const Buffer& block), with each block.
  template <typename Each>
  absl::Status ReadBlocks(int file, Each each) const;

  // Returns the name of a file in the storage.
  std::string FileName(int file) const;
  // Returns "layer fc6" or "velocity of layer fc6", for messages.
  std::string ArrayName(int layer, int array) const;

  Storage* storage_;                 // Not owned.
  Manifest manifest_;                // Manifest of the checkpoint.
  std::vector<std::string> states_;  // Names of the arrays of state.
  int arrays_;                       // Number of arrays, parameters and state.
  // Index of each layer in the manifest, by name.
  absl::flat_hash_map<std::string, int> layer_by_name_;
  // Parts of each layer and array, sorted by `first`.
  std::vector<std::vector<Part>> parts_;
  // True for each file that CheckContents has compared.
  std::vector<bool> checked_;
};

// Opens a checkpoint and verifies it. Errors: those of Open and Verify.
absl::Status VerifyCheckpoint(
    Storage& storage, const Manifest& manifest, int threads = 1,
    const CheckpointReader::Progress& progress = nullptr);

}  // namespace nereus
