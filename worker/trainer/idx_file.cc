#include "worker/trainer/idx_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Magic numbers: type of the elements (8: bytes), then number of dimensions.
constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;

// Number of bytes read at a time. So the memory grows with the real size of a
// file, not with the size that its header claims.
constexpr int64_t kReadStepBytes = int64_t{64} << 20;

// File that is gunzipped while it is read, if it is in gzip format.
class GzipFile {
 public:
  static absl::StatusOr<GzipFile> Open(const std::string& path) {
    struct stat file;
    if (stat(path.c_str(), &file) != 0) {
      const std::string why = absl::StrCat(path, ": ", std::strerror(errno));
      return errno == ENOENT ? NotFoundError(why) : UnavailableError(why);
    }
    if (!S_ISREG(file.st_mode)) {
      return InvalidArgumentError(path, " is not a regular file");
    }
    gzFile handle = gzopen(path.c_str(), "rb");
    if (handle == nullptr) {
      return UnavailableError(path, ": ", std::strerror(errno));
    }
    return GzipFile(path, handle);
  }

  const std::string& path() const { return path_; }

  // Reads up to `bytes` bytes. Returns their number, which is smaller at the
  // end of the file.
  absl::StatusOr<int64_t> Read(int64_t bytes, uint8_t* target) {
    const int result =
        gzread(file_.get(), target, static_cast<unsigned int>(bytes));
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (result < 0 || code == Z_BUF_ERROR) {
      // The message of zlib begins with the path.
      const std::string why =
          code == Z_ERRNO ? absl::StrCat(path_, ": ", std::strerror(errno))
                          : absl::StrCat("gzip stream is broken: ", message);
      return code == Z_ERRNO ? UnavailableError(why)
                             : InvalidArgumentError(why);
    }
    return result;
  }

 private:
  struct Closer {
    void operator()(gzFile file) const { gzclose_r(file); }
  };

  GzipFile(const std::string& path, gzFile file) : path_(path), file_(file) {}

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
};

uint32_t BigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

std::string Hex(uint32_t value) {
  return absl::StrCat("0x", absl::Hex(value, absl::kZeroPad8));
}

// Returns an error if the magic number is not `expected`. If images and labels
// are swapped, the error says so.
absl::Status CheckMagic(const std::string& path, uint32_t found,
                        uint32_t expected) {
  if (found == expected) return absl::OkStatus();
  const bool images = expected == kImagesMagic;
  std::string message =
      absl::StrCat(path, " starts with ", Hex(found), ", a file of ",
                   images ? "images" : "labels", " with ", Hex(expected));
  if (found == (images ? kLabelsMagic : kImagesMagic)) {
    absl::StrAppend(&message, ": it holds ", images ? "labels" : "images",
                    ", are the two files swapped?");
  }
  return InvalidArgumentError(message);
}

// Returns the product of the dimensions. Checks each factor, since the product
// of three 32-bit numbers may overflow.
absl::StatusOr<int64_t> ElementCount(const std::string& path,
                                     const std::vector<uint32_t>& dimensions) {
  const std::string shape = absl::StrJoin(dimensions, "x");
  int64_t count = 1;
  for (uint32_t dimension : dimensions) {
    if (dimension == 0) {
      return InvalidArgumentError(path, " has the empty shape ", shape);
    }
    if (dimension > kIdxBytesMax / count) {
      return InvalidArgumentError(path, " has the shape ", shape,
                                  ", more than ", kIdxBytesMax,
                                  " bytes in all");
    }
    count *= dimension;
  }
  return count;
}

// Content of an IDX file.
struct IdxArray {
  std::vector<uint32_t> dimensions;
  std::vector<uint8_t> elements;
};

// Reads the `bytes` elements after the header. The file must end there.
absl::StatusOr<std::vector<uint8_t>> ReadElements(int64_t bytes,
                                                  GzipFile* file) {
  std::vector<uint8_t> elements;
  int64_t have = 0;
  while (have < bytes) {
    const int64_t step = std::min(bytes - have, kReadStepBytes);
    elements.resize(have + step);
    const int64_t read = NEREUS_TRY(file->Read(step, elements.data() + have));
    have += read;
    if (read < step) {
      return InvalidArgumentError(file->path(), " is truncated: ", have, " of ",
                                  bytes, " bytes after its header");
    }
  }
  // Reading past the last element also makes zlib compare the checksum of a
  // gzip stream.
  uint8_t beyond;
  const int64_t read = NEREUS_TRY(file->Read(1, &beyond));
  if (read != 0) {
    return InvalidArgumentError(file->path(), " has more than the ", bytes,
                                " bytes that its header announces");
  }
  return elements;
}

absl::StatusOr<IdxArray> ReadIdx(const std::string& path, uint32_t magic) {
  GzipFile file = NEREUS_TRY(GzipFile::Open(path));
  const int64_t dimension_count = magic & 0xff;
  const int64_t header_bytes = 4 + 4 * dimension_count;
  std::vector<uint8_t> header(header_bytes);
  const int64_t read = NEREUS_TRY(file.Read(header_bytes, header.data()));
  // Checks the magic number before the length. A file of another kind can be
  // shorter than this header, and its magic number tells the user more.
  if (read >= 4) {
    NEREUS_TRY(CheckMagic(path, BigEndian32(header.data()), magic));
  }
  if (read < header_bytes) {
    return InvalidArgumentError(path, " is truncated: ", read, " of ",
                                header_bytes, " bytes of its header");
  }
  IdxArray array;
  for (int64_t i = 0; i < dimension_count; ++i) {
    array.dimensions.push_back(BigEndian32(header.data() + 4 + 4 * i));
  }
  const int64_t count = NEREUS_TRY(ElementCount(path, array.dimensions));
  array.elements = NEREUS_TRY(ReadElements(count, &file));
  return array;
}

// Returns the path of `stem` or `stem`.gz in `directory`, the first that
// exists.
std::optional<std::string> Find(const std::string& directory,
                                const std::string& stem) {
  for (const char* suffix : {"", ".gz"}) {
    const std::filesystem::path path =
        std::filesystem::path(directory) / (stem + suffix);
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return std::nullopt;
}

// Loads the pair of files `prefix`-..., or returns nothing if both are missing.
absl::StatusOr<std::optional<Dataset>> LoadPair(const std::string& directory,
                                                const std::string& prefix,
                                                int64_t limit) {
  const std::string images_name = prefix + "-images-idx3-ubyte";
  const std::string labels_name = prefix + "-labels-idx1-ubyte";
  const std::optional<std::string> images = Find(directory, images_name);
  const std::optional<std::string> labels = Find(directory, labels_name);
  if (!images.has_value() && !labels.has_value()) return std::nullopt;
  if (!images.has_value() || !labels.has_value()) {
    return NotFoundError(
        directory, " has ", images.has_value() ? images_name : labels_name,
        " but not ", images.has_value() ? labels_name : images_name,
        " (looked for it with and without .gz)");
  }
  Dataset dataset = NEREUS_TRY(LoadIdxPair(*images, *labels));
  Truncate(limit, &dataset);
  return dataset;
}

}  // namespace

absl::StatusOr<Dataset> LoadIdxPair(const std::string& images_path,
                                    const std::string& labels_path) {
  IdxArray images = NEREUS_TRY(ReadIdx(images_path, kImagesMagic));
  IdxArray labels = NEREUS_TRY(ReadIdx(labels_path, kLabelsMagic));
  if (images.dimensions[0] != labels.dimensions[0]) {
    return InvalidArgumentError(images_path, " has ", images.dimensions[0],
                                " images, ", labels_path, " has ",
                                labels.dimensions[0], " labels");
  }
  Dataset dataset;
  dataset.image = {images.dimensions[1], images.dimensions[2], 1};
  dataset.pixels = std::move(images.elements);
  dataset.labels = std::move(labels.elements);
  return dataset;
}

absl::StatusOr<DataSplit> LoadDirectory(const std::string& directory,
                                        double holdout, int64_t limit) {
  std::optional<Dataset> train =
      NEREUS_TRY(LoadPair(directory, "train", limit));
  std::optional<Dataset> test = NEREUS_TRY(LoadPair(directory, "t10k", limit));
  if (!train.has_value() && !test.has_value()) {
    return NotFoundError(
        "no data in ", directory,
        ": looked for train-images-idx3-ubyte[.gz] with "
        "train-labels-idx1-ubyte[.gz], and for t10k-images-idx3-ubyte[.gz] "
        "with t10k-labels-idx1-ubyte[.gz]");
  }
  if (!train.has_value() || !test.has_value()) {
    return Split(std::move(train.has_value() ? *train : *test), holdout);
  }
  if (train->image != test->image) {
    return InvalidArgumentError(directory, ": images to train with are ",
                                train->image.height, "x", train->image.width,
                                ", to test with ", test->image.height, "x",
                                test->image.width);
  }
  DataSplit split;
  split.train = *std::move(train);
  split.test = *std::move(test);
  split.normalisation = NormalisationOf(split.train);
  return split;
}

}  // namespace nereus
