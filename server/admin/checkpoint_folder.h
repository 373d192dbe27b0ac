#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"

namespace nereus {

// Opens `folder`, a folder that --checkpoint-dir named. Does not make the
// folder. Errors: kNotFound, `folder` is no folder, or the system cannot tell;
// those of FileStorage::Open.
absl::StatusOr<std::unique_ptr<FileStorage>> OpenCheckpointFolder(
    const std::string& folder);

// Returns kNotFound if no server has ever had the folder as its
// --checkpoint-dir: perhaps the name is misspelt. Otherwise returns OK.
absl::Status CheckIsCheckpointFolder(const std::string& folder);

}  // namespace nereus
