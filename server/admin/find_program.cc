#include "server/admin/find_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Folders of a shell without the variable PATH.
constexpr char kDefaultPath[] = "/usr/bin:/bin";

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// True if the path is a file that this user may run. A folder is no program.
bool IsProgram(const std::string& path) {
  return IsFile(path) && access(path.c_str(), X_OK) == 0;
}

// Returns the error for a path that is no program.
absl::Status NoProgramError(const std::string& path) {
  std::error_code error;
  if (IsFile(path)) {
    return NotFoundError(
        path, " is not executable: chmod +x ", path,
        absl::EndsWith(path, ".py") ? absl::StrCat(", or python3 ", path) : "");
  }
  if (std::filesystem::is_directory(path, error)) {
    return NotFoundError(path, " is a folder, and no program");
  }
  const bool exists = std::filesystem::exists(path, error);
  if (!exists && error == std::errc::permission_denied) {
    return NotFoundError("no program at ", path, ": ", error.message());
  }
  return NotFoundError("the program ", path, " does not exist");
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& given,
                                        const std::string& name,
                                        const std::string& build_path) {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error && given.empty()) {
    return NotFoundError("no folder to look for ", name,
                         " in: /proc/self/exe: ", error.message());
  }
  std::vector<std::string> places = {folder / name,
                                     (folder / build_path).lexically_normal()};
  if (!given.empty()) places = {given};
  for (const std::string& place : places) {
    if (IsProgram(place)) return place;
  }
  return NotFoundError("no program ", name, " at ",
                       absl::StrJoin(places, " or "));
}

absl::StatusOr<std::string> FindCommand(const std::string& name) {
  if (absl::StrContains(name, "/")) {
    if (IsProgram(name)) return name;
    return NoProgramError(name);
  }
  const char* const path = std::getenv("PATH");
  const std::string folders = path == nullptr ? kDefaultPath : path;
  std::string file;  // First file of this name that is not executable.
  for (const absl::string_view folder : absl::StrSplit(folders, ':')) {
    // An empty entry stands for the current folder.
    std::string place = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (IsProgram(place)) return place;
    if (file.empty() && IsFile(place)) file = place;
  }
  if (!file.empty()) return NoProgramError(file);
  return NotFoundError("no program ", name,
                       " in the folders of $PATH: ", folders);
}

}  // namespace nereus
