#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/coordinator.h"

struct sqlite3;

namespace nereus {

// A job as its coordinator last knew it, in a SQLite file, so that a
// coordinator that dies finds its job as it was. Not thread-safe.
class JobStore {
 public:
  // Opens the file, and makes it if it is not there. It stays locked: a second
  // coordinator on the same file is refused.
  // Errors: kInvalidArgument, no SQLite file of this version; kUnavailable,
  // another process has it; kPermissionDenied and others of the file system.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(
      const std::string& path);
  ~JobStore();

  // What was saved last of job `name`; nothing if nothing was. Errors:
  // kDataLoss, what is there makes no sense.
  absl::StatusOr<std::optional<CoordinatorState>> Load(const std::string& name);

  // Replaces it. Once OK is returned it survives a crash of the machine.
  absl::Status Save(const std::string& name, const CoordinatorState& state);

 private:
  JobStore(std::string path, sqlite3* database)
      : path_(std::move(path)), database_(database) {}

  absl::Status Execute(const char* sql);
  absl::Status Error(const char* what) const;

  const std::string path_;
  sqlite3* const database_;
};

}  // namespace nereus
