#include "server/admin/export_command.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/safetensors.h"
#include "common/flags/flags.h"
#include "server/process/checkpoint_files.h"

namespace nereus {
namespace {

// Elements that are in memory at a time.
constexpr int64_t kPieceElements = int64_t{1} << 22;

// The tensors of one layer, in the order of its values.
std::vector<SafetensorsTensor> TensorsOf(const LayerSpec& layer) {
  const auto tensor = [](std::string name, std::vector<int64_t> shape) {
    SafetensorsTensor made;
    made.name = std::move(name);
    made.shape = std::move(shape);
    return made;
  };
  if (layer.kind == LayerKind::kVector) {
    return {tensor(layer.name, {layer.parameters})};
  }
  std::vector<SafetensorsTensor> tensors = {
      tensor(layer.name + ".weight", {layer.m, layer.n})};
  const int64_t rest = layer.parameters - layer.m * layer.n;
  if (rest > 0) {
    tensors.push_back(
        tensor(layer.name + (rest == layer.m ? ".bias" : ".rest"), {rest}));
  }
  return tensors;
}

absl::Status WriteModel(CheckpointReader& reader, std::ostream& file) {
  const Manifest& manifest = reader.manifest();
  std::vector<SafetensorsTensor> tensors;
  for (const LayerSpec& layer : manifest.layers) {
    for (SafetensorsTensor& tensor : TensorsOf(layer)) {
      tensors.push_back(std::move(tensor));
    }
  }
  NEREUS_ASSIGN_OR_RETURN(
      const std::string header,
      EncodeSafetensorsHeader(
          tensors,
          {{"job", manifest.job}, {"round", absl::StrCat(manifest.round)}}));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (size_t i = 0; i < manifest.layers.size(); ++i) {
    const int64_t elements = manifest.layers[i].parameters;
    for (int64_t begin = 0; begin < elements; begin += kPieceElements) {
      NEREUS_ASSIGN_OR_RETURN(
          const ChunkValues values,
          reader.ReadValues(static_cast<int>(i), begin,
                            std::min(kPieceElements, elements - begin),
                            /*state_arrays=*/0));
      file.write(reinterpret_cast<const char*>(values.parameters.data()),
                 static_cast<std::streamsize>(values.parameters.bytes()));
    }
  }
  file.flush();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(strerror(errno));
}

absl::StatusOr<FoundCheckpoint> Find(Storage& storage,
                                     const std::string& folder,
                                     const std::string& round) {
  if (round == "latest") {
    NEREUS_ASSIGN_OR_RETURN(std::optional<FoundCheckpoint> newest,
                            FindNewest(storage));
    if (newest.has_value()) return *std::move(newest);
    return absl::NotFoundError(
        absl::StrCat("there is no whole checkpoint in ", folder));
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(round, &number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--round is \"", round, "\", must be latest or a number"));
  }
  absl::StatusOr<FoundCheckpoint> found = FindRound(storage, number);
  if (!absl::IsNotFound(found.status())) return found;
  return absl::NotFoundError(absl::StrCat(
      "there is no whole checkpoint of round ", number, " in ", folder,
      "; `nereusctl checkpoints ", folder, "` shows what there is"));
}

absl::StatusOr<std::string> Export(const std::string& folder,
                                   const std::string& round,
                                   const std::string& file) {
  struct stat found = {};
  if (stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat(folder, " is not a folder with checkpoints"));
  }
  NEREUS_ASSIGN_OR_RETURN(const std::unique_ptr<FileStorage> storage,
                          FileStorage::Open(folder));
  NEREUS_ASSIGN_OR_RETURN(const FoundCheckpoint checkpoint,
                          Find(*storage, folder, round));
  NEREUS_RETURN_IF_ERROR(ExportModel(storage.get(), checkpoint.manifest, file));
  return absl::StrCat(file, ": ", checkpoint.manifest.layers.size(),
                      " layers as of round ", checkpoint.manifest.round,
                      " of job ", checkpoint.manifest.job, "\n");
}

}  // namespace

absl::Status ExportModel(Storage* storage, const Manifest& manifest,
                         const std::string& file) {
  struct stat found = {};
  if (stat(file.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " is there, and is no regular file"));
  }
  NEREUS_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::Open(storage, manifest));
  const std::string temporary = file + ".tmp";
  absl::Status written;
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    written = stream ? WriteModel(reader, stream)
                     : absl::UnavailableError(strerror(errno));
  }
  if (written.ok() && std::rename(temporary.c_str(), file.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (written.ok()) written = absl::UnavailableError(strerror(errno));
  std::remove(temporary.c_str());
  return absl::Status(written.code(), absl::StrCat("cannot write ", file, ": ",
                                                   written.message()));
}

CLI::App* ExportCommand::Register(CLI::App& app) {
  CLI::App* const subcommand = app.add_subcommand(
      "export", "Writes a checkpoint's model to one safetensors file");
  subcommand->add_option("folder", folder_, "what --checkpoint-dir named")
      ->required();
  AddFlag(*subcommand, "out", file_, "file to write")->required();
  AddFlag(*subcommand, "round", round_,
          "of which checkpoint: latest, or a round");
  return subcommand;
}

int ExportCommand::Run(std::ostream& out, std::ostream& err) {
  const absl::StatusOr<std::string> exported = Export(folder_, round_, file_);
  if (!exported.ok()) {
    err << "nereusctl export: " << std::string(exported.status().message())
        << "\n";
    return kExitFailed;
  }
  out << *exported;
  return kExitDone;
}

}  // namespace nereus
