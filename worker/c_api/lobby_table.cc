#include "worker/c_api/lobby_table.h"

#include <cstdlib>
#include <utility>

#include "worker/c_api/client_table.h"

namespace nereus {
namespace {

// Closes lobbies when the process exits, as WatchExit in client_table.cc does
// with clients. Called after the first lobby is made.
void WatchExit() {
  std::atexit([] {
    if (CheckNotForked().ok()) LobbyTable::Get().CloseAll();
  });
}

}  // namespace

absl::StatusOr<int32_t> LobbyEntry::Gather(absl::string_view value,
                                           absl::Duration timeout) {
  std::vector<std::string> values = NEREUS_TRY(lobby_->Gather(value, timeout));
  MutexLock lock(&mu_);
  gathered_ = std::move(values);
  return static_cast<int32_t>(gathered_.size());
}

absl::StatusOr<std::string> LobbyEntry::Gathered(int32_t index) const {
  MutexLock lock(&mu_);
  const auto count = static_cast<int32_t>(gathered_.size());
  if (index >= 0 && index < count) return gathered_[index];
  return InvalidArgumentError("there is no value ", index,
                              ": the last gathering has ", count, " values");
}

LobbyTable& LobbyTable::Get() {
  static LobbyTable& table = *new LobbyTable;
  return table;
}

nereus_lobby* LobbyTable::Add(std::unique_ptr<Lobby> lobby) {
  [[maybe_unused]] static const bool is_watched = [] {
    WatchExit();
    return true;
  }();
  MutexLock lock(&mu_);
  entries_[++last_handle_] = std::make_shared<LobbyEntry>(std::move(lobby));
  return reinterpret_cast<nereus_lobby*>(last_handle_);
}

std::shared_ptr<LobbyEntry> LobbyTable::Find(nereus_lobby* handle) const {
  MutexLock lock(&mu_);
  const auto entry = entries_.find(reinterpret_cast<uintptr_t>(handle));
  return entry == entries_.end() ? nullptr : entry->second;
}

std::shared_ptr<LobbyEntry> LobbyTable::Remove(nereus_lobby* handle) {
  MutexLock lock(&mu_);
  auto entry = entries_.extract(reinterpret_cast<uintptr_t>(handle));
  return entry.empty() ? nullptr : std::move(entry.mapped());
}

// Destroys the lobbies without the lock.
void LobbyTable::CloseAll() {
  std::map<uintptr_t, std::shared_ptr<LobbyEntry>> entries;
  {
    MutexLock lock(&mu_);
    entries.swap(entries_);
  }
  for (const auto& [handle, entry] : entries) entry->Close();
}

}  // namespace nereus
