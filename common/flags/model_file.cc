#include "common/flags/model_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/model_table.h"

namespace nereus {
namespace {

// Byte-order mark in UTF-8.
constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& name) {
  errno = 0;
  std::ifstream file(name, std::ios::binary);
  if (!file) {
    return InvalidArgumentError("cannot open ", name, ": ", strerror(errno));
  }
  // Reads one byte beyond the limit: if there is one, the file is too large.
  std::string text(kInputFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !file.eof()) {
    return InvalidArgumentError(
        file.gcount() > kInputFileBytesMax
            ? absl::StrCat(name, " has more than ", kInputFileBytesMax,
                           " bytes")
            : absl::StrCat("cannot read ", name, ": ", strerror(errno)));
  }
  text.resize(file.gcount());
  if (absl::StartsWith(text, kByteOrderMark)) {
    text.erase(0, kByteOrderMark.size());
  }
  return text;
}

// Closes the file before the check, because some errors of the disk show only
// then.
absl::Status WriteTextFile(const std::string& name, const std::string& text) {
  errno = 0;
  std::ofstream file(name, std::ios::binary);
  file << text << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return UnavailableError("cannot write ", name, ": ", strerror(errno));
}

absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch) {
  const bool is_file =
      absl::StrContains(model, "/") || absl::EndsWith(model, ".csv");
  if (!is_file) {
    absl::StatusOr<std::vector<LayerSpec>> known = LoadModel(model, batch);
    if (known.ok()) return known;
    return InvalidArgumentError(known.status().message());
  }
  // Checks the batch first: a wrong batch is no error of the file.
  NEREUS_TRY(CheckBatch(batch));
  const std::string text = NEREUS_TRY(ReadTextFile(model));
  absl::StatusOr<std::vector<LayerSpec>> layers = ParseModelTable(text, batch);
  if (!layers.ok()) {
    return InvalidArgumentError(model, ": ", layers.status().message());
  }
  return layers;
}

absl::StatusOr<std::vector<LayerTime>> LoadComputeTrace(
    const std::string& name, const std::vector<LayerSpec>& layers) {
  const std::string text = NEREUS_TRY(ReadTextFile(name));
  absl::StatusOr<std::vector<LayerTime>> times =
      ParseComputeTrace(text, layers);
  if (times.ok()) return times;
  return InvalidArgumentError(name, ": ", times.status().message());
}

std::string DescribeModelFlag() {
  return absl::StrCat("a known model (", absl::StrJoin(ModelNames(), ", "),
                      "), or a file with a table of layers: its name ends in "
                      ".csv or contains a /, and docs/models.md describes the "
                      "table");
}

}  // namespace nereus
