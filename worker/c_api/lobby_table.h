#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/c_api/nereus.h"
#include "worker/public/lobby.h"

namespace nereus {

// Lobby behind one handle, and the values that it gathered last. Thread-safe.
class LobbyEntry {
 public:
  explicit LobbyEntry(std::unique_ptr<Lobby> lobby)
      : lobby_(std::move(lobby)) {}

  // Collects a value of each process (Lobby::Gather) and keeps the values.
  // Returns the number of values.
  absl::StatusOr<int32_t> Gather(absl::string_view value,
                                 absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns value `index` of the last Gather that has returned OK. Errors:
  // kInvalidArgument, there is no such value.
  absl::StatusOr<std::string> Gathered(int32_t index) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes a Gather that waits in another thread return, and all later ones.
  void Close() { lobby_->Close(); }

 private:
  const std::unique_ptr<Lobby> lobby_;
  mutable Mutex mu_;
  // Values of the last Gather.
  std::vector<std::string> gathered_ ABSL_GUARDED_BY(mu_);
};

// All open lobbies of the C interface, by handle. As in ClientTable, a handle
// is a number that is never used again, and when the process exits, the table
// closes all lobbies. A call owns the entry that it uses, so a lobby is
// destroyed after the last call on it has returned. Thread-safe; there is one
// table, which is never destroyed.
class LobbyTable {
 public:
  // Returns the one table.
  static LobbyTable& Get();

  // Adds a lobby. Returns its handle.
  nereus_lobby* Add(std::unique_ptr<Lobby> lobby) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the entry of a handle; null if there is none.
  std::shared_ptr<LobbyEntry> Find(nereus_lobby* handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a handle and returns its entry; null if there is none.
  std::shared_ptr<LobbyEntry> Remove(nereus_lobby* handle)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes and closes all lobbies.
  void CloseAll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  uintptr_t last_handle_ ABSL_GUARDED_BY(mu_) = 0;  // Last handle given.
  std::map<uintptr_t, std::shared_ptr<LobbyEntry>> entries_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
