#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "worker/trainer/dataset.h"

namespace nereus {

// Reader for the files of MNIST and its relatives: IDX, plain or gzip. An IDX
// file is big-endian: a magic number (two zero bytes, the type of the elements,
// the number of dimensions), the dimensions, then the elements. This reader
// accepts only elements of one byte: images with three dimensions, and labels
// with one.
//
// The files may be hostile. Whatever they hold, the result is a Dataset with
// one label per image, or an error that names the file and the values that do
// not fit.

// Largest number of bytes of one file's elements.
inline constexpr int64_t kIdxBytesMax = int64_t{1} << 32;

// Loads a file of images and the file of their labels.
//
// Errors: kNotFound, no such file; kInvalidArgument, not an IDX file of its
// kind, an empty or too large dimension, missing or trailing bytes, a broken
// gzip stream, or files with different counts; kUnavailable, reading failed.
absl::StatusOr<Dataset> LoadIdxPair(const std::string& images_path,
                                    const std::string& labels_path);

// Loads the images in the folder `directory`, under the names that MNIST has:
//
//   train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]
//   t10k-images-idx3-ubyte[.gz] and t10k-labels-idx1-ubyte[.gz]
//
// If both pairs exist, the first pair is for training and the second pair for
// the test. If only one pair exists, its last `holdout` share is for the test
// (see Split). Uses the first `limit` images of each pair; 0 uses all.
//
// Errors: those of LoadIdxPair and Split; kNotFound, both pairs or one half of
// a pair are missing; kInvalidArgument, the images of the two pairs differ in
// shape.
absl::StatusOr<DataSplit> LoadDirectory(const std::string& directory,
                                        double holdout, int64_t limit);

}  // namespace nereus
