#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/safetensors.h"
#include "common/flags/flags.h"
#include "server/admin/checkpoint_folder.h"
#include "server/admin/commands.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

// Largest number of elements that are in memory at a time.
constexpr int64_t kPieceElements = int64_t{1} << 22;

// Returns the tensors of one layer, in the order of its values. The tensors of
// a layer called "fc1.weight" have the names of those of a layer "fc1", unless
// `names`, the names of all layers, has "fc1" too.
std::vector<SafetensorsTensor> TensorsOf(const LayerSpec& layer,
                                         const std::set<std::string>& names) {
  absl::string_view stem = layer.name;
  if (!absl::ConsumeSuffix(&stem, ".weight") || stem.empty() ||
      names.contains(std::string(stem))) {
    stem = layer.name;
  }
  const auto tensor = [&](const char* part, std::vector<int64_t> shape) {
    SafetensorsTensor made;
    made.name = absl::StrCat(stem, part);
    made.shape = std::move(shape);
    return made;
  };
  if (layer.kind == LayerKind::kVector) {
    stem = layer.name;
    return {tensor("", {layer.parameters})};
  }
  std::vector<SafetensorsTensor> tensors = {
      tensor(".weight", {layer.m, layer.n})};
  const int64_t rest = layer.parameters - layer.m * layer.n;
  if (rest > 0) {
    tensors.push_back(tensor(rest == layer.m ? ".bias" : ".rest", {rest}));
  }
  return tensors;
}

absl::Status WriteError(int error) {
  return UnavailableError("the file cannot be written: ", strerror(error));
}

// Writes the header of all tensors, and then their values, kPieceElements at a
// time.
absl::Status WriteModel(CheckpointReader& reader, std::ostream& file) {
  const Manifest& manifest = reader.manifest();
  std::set<std::string> names;
  for (const LayerSpec& layer : manifest.layers) names.insert(layer.name);
  std::vector<SafetensorsTensor> tensors;
  for (const LayerSpec& layer : manifest.layers) {
    for (SafetensorsTensor& tensor : TensorsOf(layer, names)) {
      tensors.push_back(std::move(tensor));
    }
  }
  const std::string header = NEREUS_TRY(EncodeSafetensorsHeader(
      tensors,
      {{"job", manifest.job}, {"round", absl::StrCat(manifest.round)}}));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (size_t i = 0; i < manifest.layers.size(); ++i) {
    const int64_t elements = manifest.layers[i].parameters;
    for (int64_t begin = 0; begin < elements; begin += kPieceElements) {
      const ChunkValues values = NEREUS_TRY(
          reader.ReadValues(static_cast<int>(i), begin,
                            std::min(kPieceElements, elements - begin),
                            /*state_arrays=*/0));
      file.write(reinterpret_cast<const char*>(values.parameters.data()),
                 static_cast<std::streamsize>(values.parameters.bytes()));
      if (!file) return WriteError(errno);
    }
  }
  file.flush();
  return file ? absl::OkStatus() : WriteError(errno);
}

// Finds the checkpoint of `round`: a number, or "latest".
absl::StatusOr<FoundCheckpoint> Find(Storage& storage,
                                     const std::string& folder,
                                     const std::string& round) {
  if (round == "latest") {
    absl::StatusOr<std::optional<FoundCheckpoint>> newest = FindNewest(storage);
    if (!newest.ok()) {
      return WithOthers(newest.status(), kInitialRound, "--round", storage);
    }
    if (newest->has_value()) return **std::move(newest);
    return NotFoundError("there is no complete checkpoint in ", folder);
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(round, &number)) {
    return InvalidArgumentError("--round is \"", round,
                                "\", must be latest or a number");
  }
  absl::StatusOr<FoundCheckpoint> found = FindRound(storage, number);
  if (found.ok()) return found;
  if (!absl::IsNotFound(found.status())) {
    return WithOthers(found.status(), number, "--round", storage);
  }
  return NotFoundError("there is no complete checkpoint of round ", number,
                       " in ", folder, "; `nereusctl checkpoints ", folder,
                       "` lists all");
}

// True if `file` is, or would be, a file of the checkpoints in `folder`.
bool IsOfCheckpoints(const std::string& file, const std::string& folder) {
  std::error_code error;
  const auto inner = std::filesystem::weakly_canonical(
      std::filesystem::absolute(file, error), error);
  const auto outer = std::filesystem::canonical(folder, error);
  if (error) return false;
  if (inner.parent_path() == outer) return inner.filename() == kFolderIdFile;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end())
             .first == outer.end();
}

// Returns once the contents of the file are on the disk.
absl::Status Flush(const std::string& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return WriteError(errno);
  const absl::Status flushed =
      fsync(fd) == 0 ? absl::OkStatus() : WriteError(errno);
  close(fd);
  return flushed;
}

// Writes the model to a temporary file, and renames it when it is whole.
// Errors: those of CheckpointReader; kInvalidArgument, `file` exists and is no
// regular file; kUnavailable, the file cannot be written.
absl::Status ExportModel(Storage* storage, const Manifest& manifest,
                         const std::string& file) {
  std::error_code error;
  // Refuses a device or a pipe, which the rename below would replace by a file.
  if (std::filesystem::exists(file, error) &&
      !std::filesystem::is_regular_file(file, error)) {
    return InvalidArgumentError("--out is ", file,
                                ", which exists and is not a regular file");
  }
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(storage, manifest));
  const std::string temporary = file + ".tmp";
  absl::Status written;
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    written = stream ? WriteModel(reader, stream) : WriteError(errno);
    stream.close();  // Some file systems report errors only here.
    if (written.ok() && !stream) written = WriteError(errno);
  }
  // Without this, a crash of the machine soon after the rename could leave an
  // empty file.
  if (written.ok()) written = Flush(temporary);
  if (written.ok()) {
    std::filesystem::rename(temporary, file, error);
    if (!error) return absl::OkStatus();
    written = WriteError(error.value());
  }
  std::filesystem::remove(temporary, error);
  return Prefixed(written, file, " is not written: ");
}

// Finds the checkpoint, exports its model, and says what the file has.
class ExportCommand final : public Command {
 public:
  ExportCommand()
      : Command("export",
                "Writes the model of a checkpoint to one safetensors file") {}

 private:
  void AddFlags(CLI::App& app) override {
    app.add_option("folder", folder_, "the folder that --checkpoint-dir named")
        ->required();
    AddFlag(app, "out", file_, "file to write")->required();
    AddFlag(app, "round", round_,
            "round of the checkpoint, as `nereusctl checkpoints` lists it, or "
            "latest");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const std::unique_ptr<FileStorage> storage =
        NEREUS_TRY(OpenCheckpointFolder(folder_));
    if (IsOfCheckpoints(file_, folder_)) {
      return InvalidArgumentError("--out is ", file_,
                                  ", must be outside the folders of "
                                  "checkpoints in ",
                                  folder_);
    }
    const FoundCheckpoint checkpoint =
        NEREUS_TRY(Find(*storage, folder_, round_));
    const Manifest& manifest = checkpoint.manifest;
    if (const absl::Status exported =
            ExportModel(storage.get(), manifest, file_);
        !exported.ok()) {
      // If the file cannot be written, another checkpoint does not help.
      if (absl::IsUnavailable(exported) || absl::IsInvalidArgument(exported)) {
        return exported;
      }
      return WithOthers(exported, manifest.round, "--round", *storage);
    }
    out << file_ << ": " << manifest.layers.size() << " layers as of round "
        << manifest.round << " of job " << manifest.job << "\n";
    return kExitDone;
  }

  std::string folder_;            // Folder with checkpoints.
  std::string file_;              // --out
  std::string round_ = "latest";  // --round
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace nereus
