#pragma once

#include <string>

#include "common/base/status.h"

namespace nereus {

// Returns the path of a program of Nereus. That is `given`, unless it is empty;
// then the program is beside this program, or at `build_path` in Bazel's tree.
// Errors: kNotFound, with the paths.
absl::StatusOr<std::string> FindProgram(const std::string& given,
                                        const std::string& name,
                                        const std::string& build_path);

// Returns the path of a program as a shell finds it: `name` itself if it has a
// slash, and otherwise the first such program in the folders of $PATH. Without
// PATH, these are /usr/bin and /bin. Errors: kNotFound, with the path and the
// reason, or with the name and the folders.
absl::StatusOr<std::string> FindCommand(const std::string& name);

}  // namespace nereus
