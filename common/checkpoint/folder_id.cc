#include "common/checkpoint/folder_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/identity.h"

namespace nereus {
namespace {

constexpr size_t kDigits = 16;
// Whoever has made the file is about to write it.
constexpr int kReadsMax = 100;
constexpr absl::Duration kReadInterval = absl::Milliseconds(20);

// True if the file was made here and has the id.
absl::StatusOr<bool> Make(const std::string& path, const std::string& id) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (fd < 0 && errno == EEXIST) return false;
  const bool written = fd >= 0 && write(fd, id.data(), id.size()) ==
                                      static_cast<ssize_t>(id.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (written) return true;
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::string> FolderId(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/nereus-folder-id");
  const std::string id =
      absl::StrCat(absl::Hex(DrawUniqueId(), absl::kZeroPad16));
  const absl::StatusOr<bool> made = Make(path, id);
  if (!made.ok()) return made.status();
  if (*made) return id;
  std::string found;
  for (int i = 0; i < kReadsMax; ++i) {
    std::ifstream file(path);
    found.clear();
    if (file >> found && found.size() >= kDigits) break;
    absl::SleepFor(kReadInterval);
  }
  const bool is_id =
      found.size() == kDigits &&
      std::all_of(found.begin(), found.end(), absl::ascii_isxdigit);
  if (is_id) return found;
  return absl::DataLossError(
      absl::StrCat(path, " is not a folder's id: remove it"));
}

}  // namespace nereus
