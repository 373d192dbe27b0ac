#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/dataset.h"

namespace nereus {

// Reads the files that MNIST and its relatives come in: IDX, plain or gzip. An
// IDX file is big-endian: a magic number (two zero bytes, the type of the
// elements, the number of dimensions), the dimensions, then the elements.
// Only bytes as elements are read here: images with three dimensions, labels
// with one.
//
// The files are taken for hostile: whatever they hold, the result is a Dataset
// with `labels.size()` images or an error that names the file and both values.

// Most bytes of one file's elements.
inline constexpr int64_t kIdxBytesMax = int64_t{1} << 32;

// One image per label.
//
// Errors: kNotFound, no such file; kInvalidArgument, not an IDX file of its
// kind (says so if images and labels are swapped), an empty or too large
// dimension, missing or trailing bytes, a broken gzip stream, or two files of
// different counts; kUnavailable, reading failed.
absl::StatusOr<Dataset> LoadIdxPair(const std::string& images_path,
                                    const std::string& labels_path);

// The data in the folder `directory`, under the names that MNIST has:
//   train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]
//   t10k-images-idx3-ubyte[.gz] and t10k-labels-idx1-ubyte[.gz]
// Both pairs: the first to train, the second to test with. One pair alone: its
// last `holdout` share is held out for the test (see Split). Of each pair, the
// first `limit` images alone; 0 takes all.
//
// Errors: those of LoadIdxPair and Split; kNotFound, neither pair is there, or
// one half of a pair; kInvalidArgument, the two pairs' images differ in shape.
absl::StatusOr<DataSplit> LoadDirectory(const std::string& directory,
                                        double holdout, int64_t limit);

}  // namespace nereus
