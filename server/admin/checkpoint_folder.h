#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"

namespace nereus {

// Opens a folder that --checkpoint-dir named, and that exists.
// Errors: kNotFound, there is no such folder; kUnavailable, it cannot be read.
absl::StatusOr<std::unique_ptr<FileStorage>> OpenCheckpointFolder(
    const std::string& folder);

}  // namespace nereus
