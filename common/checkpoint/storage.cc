#include "common/checkpoint/storage.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// True for letters, digits and "._-". These characters have no special meaning
// in any file system or shell.
bool IsAllowed(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

absl::Status ValidateStoragePart(absl::string_view part) {
  if (part.empty() || part.size() > kStoragePartBytesMax) {
    return InvalidArgumentError("file name ", ShownName(part), " has ",
                                part.size(), " bytes, not from 1 to ",
                                kStoragePartBytesMax);
  }
  if (part == "." || part == "..") {
    return InvalidArgumentError("file name ", ShownName(part),
                                " is the name of a folder, not of a file");
  }
  if (!absl::c_all_of(part, IsAllowed)) {
    return InvalidArgumentError(
        "file name ", ShownName(part),
        " has other characters than letters, digits and \"._-\"");
  }
  return absl::OkStatus();
}

absl::Status ValidateStorageName(absl::string_view name) {
  if (name.size() > kStorageNameBytesMax) {
    return InvalidArgumentError("path ", ShownName(name), " has ", name.size(),
                                " bytes; the limit is ", kStorageNameBytesMax);
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    const absl::Status status = ValidateStoragePart(part);
    if (!status.ok()) return Prefixed(status, "path ", ShownName(name), ": ");
  }
  return absl::OkStatus();
}

}  // namespace nereus
