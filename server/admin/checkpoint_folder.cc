#include "server/admin/checkpoint_folder.h"

#include <filesystem>
#include <system_error>

#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"

namespace nereus {

// Checks that the folder exists: FileStorage::Open would make a folder for a
// misspelt name.
absl::StatusOr<std::unique_ptr<FileStorage>> OpenCheckpointFolder(
    const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) {
    return FileStorage::Open(folder);
  }
  return NotFoundError(folder, " is not a folder with checkpoints",
                       error ? ": " : "", error ? error.message() : "");
}

absl::Status CheckIsCheckpointFolder(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::exists(absl::StrCat(folder, "/", kFolderIdFile),
                              error)) {
    return absl::OkStatus();
  }
  return NotFoundError("there are no checkpoints in ", folder,
                       ", and no server has had it as its --checkpoint-dir: it "
                       "has no file ",
                       kFolderIdFile);
}

}  // namespace nereus
