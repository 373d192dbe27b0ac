#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "server/coordinator/coordinator.h"

struct sqlite3;

namespace nereus {

// Store for the states of coordinators, in a SQLite file, by the names of their
// jobs. A coordinator that is started again goes on from the last state of its
// job. Not thread-safe.
class JobStore {
 public:
  // Opens the file, or creates it. Keeps it locked until the destructor,
  // because a second coordinator would undo the changes of the first. Errors:
  // kInvalidArgument, the file is not a SQLite file, or is of another program
  // or version; kUnavailable, another process has the file open;
  // kPermissionDenied; kResourceExhausted, the disk is full; kUnknown, any
  // other error of SQLite.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(
      const std::string& path);
  ~JobStore();

  // Returns the last saved state of job `name`, or nullopt if no state was
  // saved. Errors: also kDataLoss, the stored state cannot be decoded.
  absl::StatusOr<std::optional<CoordinatorState>> Load(const std::string& name);

  // Replaces the state of job `name`. After OK, the state survives a crash of
  // the computer.
  absl::Status Save(const std::string& name, const CoordinatorState& state);

 private:
  JobStore(std::string path, sqlite3* database)
      : path_(std::move(path)), database_(database) {}

  // Executes statements, and ignores the rows that they return.
  absl::Status Execute(const char* sql);
  // Returns SQLite's last error, as "PATH: cannot WHAT: REASON".
  absl::Status Error(const char* what) const;

  const std::string path_;   // Path of the file, for error messages.
  sqlite3* const database_;  // Owned.
};

}  // namespace nereus
