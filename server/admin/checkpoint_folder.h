#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"

namespace nereus {

// Opens `folder`, the value of --checkpoint-dir. Does not make the folder.
// Errors: kNotFound, `folder` is no folder, or the system cannot tell; those of
// FileStorage::Open.
absl::StatusOr<std::unique_ptr<FileStorage>> OpenCheckpointFolder(
    const std::string& folder);

// Returns kNotFound if no server has had the folder as its --checkpoint-dir:
// the name may be misspelt.
absl::Status CheckIsCheckpointFolder(const std::string& folder);

}  // namespace nereus
