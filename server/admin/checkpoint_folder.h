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

}  // namespace nereus
