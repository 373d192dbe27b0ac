#include "worker/c_api/client_table.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <utility>

namespace nereus {
namespace {

// True in a process that was forked after its parent's first WatchForks.
std::atomic<bool> is_forked{false};

thread_local std::string last_error;

// Closes clients when the process exits. At exit, functions run and static
// variables are destroyed in the reverse order of their registration. So
// WatchExit is called after the first client is made: the clients are then
// closed before the static variables that their threads use are destroyed.
void WatchExit() {
  std::atexit([] {
    if (!is_forked) ClientTable::Get().CloseIdle();
  });
}

}  // namespace

absl::Status ClientEntry::Begin(bool needs_joined) {
  MutexLock lock(&mu_);
  absl::Status status = CheckMayBegin(needs_joined);
  if (status.ok()) {
    ++call_count_;
  } else {
    error_ = std::string(status.message());
  }
  return status;
}

absl::Status ClientEntry::CheckMayBegin(bool needs_joined) const {
  if (is_closed_) return InvalidArgumentError("the client was closed");
  if (!needs_joined || has_joined_) return absl::OkStatus();
  return FailedPreconditionError(
      "the client has not joined the job: call nereus_client_wait_connected "
      "until it returns NEREUS_OK");
}

void ClientEntry::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!status.ok()) error_ = std::string(status.message());
  --call_count_;
}

absl::Status ClientEntry::AwaitJoined(absl::Duration timeout, Stream stream) {
  {
    MutexLock lock(&mu_);
    if (has_joined_) return absl::OkStatus();
    if (std::exchange(is_joining_, true)) {
      return FailedPreconditionError(
          "another thread is in nereus_client_wait_connected");
    }
  }
  const absl::Status status = client_->AwaitJoined(timeout, stream);
  MutexLock lock(&mu_);
  is_joining_ = false;
  has_joined_ = status.ok();
  return status;
}

absl::StatusOr<int32_t> ClientEntry::Gather(absl::string_view value,
                                            absl::Duration timeout) {
  std::vector<std::string> values = NEREUS_TRY(client_->Gather(value, timeout));
  MutexLock lock(&mu_);
  gathered_ = std::move(values);
  return static_cast<int32_t>(gathered_.size());
}

absl::StatusOr<std::string> ClientEntry::Gathered(int32_t index) const {
  MutexLock lock(&mu_);
  const auto count = static_cast<int32_t>(gathered_.size());
  if (index >= 0 && index < count) return gathered_[index];
  return InvalidArgumentError("there is no value ", index,
                              ": the last gathering has ", count, " values");
}

absl::Status ClientEntry::TakeTurn(absl::Duration timeout) {
  {
    MutexLock lock(&mu_);
    if (turn_.has_value()) {
      return FailedPreconditionError(
          "the turn is taken already: give it back before you take it again");
    }
  }
  DeviceTurn turn = NEREUS_TRY(client_->TakeDeviceTurn(timeout));
  MutexLock lock(&mu_);
  turn_ = std::move(turn);
  return absl::OkStatus();
}

void ClientEntry::GiveTurn() {
  std::optional<DeviceTurn> turn;  // Given back without the lock.
  MutexLock lock(&mu_);
  turn.swap(turn_);
}

bool ClientEntry::Close(bool waits) {
  // Destroyed without the lock, when this function returns. If several threads
  // close the client, only one of them gets it.
  std::unique_ptr<Client> client;
  std::optional<DeviceTurn> turn;  // Before the client.
  {
    MutexLock lock(&mu_);
    if (!waits && call_count_ > 0) return false;
    is_closed_ = true;
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return call_count_ == 0;
    });
    client = std::move(client_);
    turn.swap(turn_);
  }
  return true;
}

std::string ClientEntry::error() const {
  MutexLock lock(&mu_);
  return error_;
}

ClientTable& ClientTable::Get() {
  static ClientTable& table = *new ClientTable;
  return table;
}

nereus_client* ClientTable::Add(std::unique_ptr<Client> client) {
  [[maybe_unused]] static const bool is_watched = [] {
    WatchExit();
    return true;
  }();
  MutexLock lock(&mu_);
  entries_[++last_handle_] = std::make_shared<ClientEntry>(std::move(client));
  return reinterpret_cast<nereus_client*>(last_handle_);
}

std::shared_ptr<ClientEntry> ClientTable::Find(nereus_client* handle) const {
  MutexLock lock(&mu_);
  const auto entry = entries_.find(reinterpret_cast<uintptr_t>(handle));
  return entry == entries_.end() ? nullptr : entry->second;
}

std::shared_ptr<ClientEntry> ClientTable::Remove(nereus_client* handle) {
  MutexLock lock(&mu_);
  auto entry = entries_.extract(reinterpret_cast<uintptr_t>(handle));
  return entry.empty() ? nullptr : std::move(entry.mapped());
}

void ClientTable::CloseIdle() {
  std::vector<std::shared_ptr<ClientEntry>> idle;
  {
    MutexLock lock(&mu_);
    for (auto& [handle, entry] : entries_) idle.push_back(entry);
  }
  for (const auto& entry : idle) entry->Close(/*waits=*/false);
}

void WatchForks() {
  [[maybe_unused]] static const int is_watching =
      pthread_atfork(/*prepare=*/nullptr, /*parent=*/nullptr,
                     /*child=*/[] { is_forked = true; });
}

absl::Status CheckNotForked() {
  if (!is_forked) return absl::OkStatus();
  return FailedPreconditionError(
      "this process was forked after its parent's first "
      "nereus_client_connect or nereus_lobby_enter, and does not have the "
      "threads of the parent's clients: start it by exec, or by the spawn "
      "method of your language, and "
      "connect in it");
}

nereus_code ReturnCode(const absl::Status& status) {
  if (!status.ok()) last_error = std::string(status.message());
  return static_cast<nereus_code>(status.code());
}

const char* LastError() { return last_error.c_str(); }

}  // namespace nereus
