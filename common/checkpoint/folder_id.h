#ifndef NEREUS_COMMON_CHECKPOINT_FOLDER_ID_H_
#define NEREUS_COMMON_CHECKPOINT_FOLDER_ID_H_

#include <string>

#include "absl/status/statusor.h"

namespace nereus {

// Returns what tells a folder from any other: 16 hexadecimal digits in its file
// `nereus-folder-id`, which the first process that asks makes. Processes that
// name one folder by different paths, or from different hosts, get the same;
// those that name two folders by one path do not. A copy of a folder has the
// same.
//
// Errors: kUnavailable, the file can neither be made nor read; kDataLoss, it
// has something else.
absl::StatusOr<std::string> FolderId(const std::string& folder);

}  // namespace nereus

#endif  // NEREUS_COMMON_CHECKPOINT_FOLDER_ID_H_
