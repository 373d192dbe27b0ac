#pragma once

#include <string>

#include "common/base/status.h"

namespace nereus {

// Returns the path of the Nereus program `name`. If `given` is not empty, that
// is the path. Otherwise looks beside this program, and then at `build_path`,
// the place in Bazel's tree relative to this program's folder. Errors:
// kNotFound, with the paths.
absl::StatusOr<std::string> FindProgram(const std::string& given,
                                        const std::string& name,
                                        const std::string& build_path);

// Returns the path of a program as a shell finds it: `name` itself if it has a
// slash, otherwise the first program of this name in the folders of $PATH. If
// PATH is not set, the folders are /usr/bin and /bin. Errors: kNotFound, with
// the path and the reason, or with the name and the folders.
absl::StatusOr<std::string> FindCommand(const std::string& name);

}  // namespace nereus
