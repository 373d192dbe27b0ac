#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/c_api/nereus.h"
#include "worker/public/client.h"

namespace nereus {

// Client behind one handle, and the calls on it. Destroys the client only when
// no call uses it: a caller in another language can close a client on one
// thread while another thread still waits in a call. Thread-safe.
class ClientEntry {
 public:
  explicit ClientEntry(std::unique_ptr<Client> client)
      : client_(std::move(client)) {}

  // Begins a call. Each Begin that has returned OK must be followed by one End.
  // Errors: kInvalidArgument, the client was closed; kFailedPrecondition,
  // `needs_joined` is true and AwaitJoined has not succeeded yet. Begin stores
  // the text of its error.
  absl::Status Begin(bool needs_joined) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a call. Stores the text of `status` if it is an error.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the client has joined the job. REQUIRES: between Begin and End.
  // Errors: kFailedPrecondition, another thread is in AwaitJoined; those of
  // Client::AwaitJoined.
  absl::Status AwaitJoined(absl::Duration timeout, Stream stream)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Collects a value from each worker (Client::Gather) and keeps the values.
  // Returns the number of values. REQUIRES: between Begin and End.
  absl::StatusOr<int32_t> Gather(absl::string_view value,
                                 absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns value `index` of the last Gather that has returned OK. Errors:
  // kInvalidArgument, there is no such value.
  absl::StatusOr<std::string> Gathered(int32_t index) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Takes a turn at the shared device (Client::TakeDeviceTurn), and gives it
  // back. REQUIRES: between Begin and End. Errors of TakeTurn:
  // kFailedPrecondition, the turn is taken already; those of TakeDeviceTurn.
  absl::Status TakeTurn(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveTurn() ABSL_LOCKS_EXCLUDED(mu_);

  // Refuses calls from now on, waits until the calls under way have ended, and
  // destroys the client, unless another thread has done so. Returns true. If
  // `waits` is false and a call is under way, does nothing and returns false.
  bool Close(bool waits) ABSL_LOCKS_EXCLUDED(mu_);

  // Text of the last call that failed.
  std::string error() const ABSL_LOCKS_EXCLUDED(mu_);

  // The client. REQUIRES: between Begin and End.
  Client& client() { return *client_; }

 private:
  // Returns the error that Begin returns; it does not change anything.
  absl::Status CheckMayBegin(bool needs_joined) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Null once the client is closed. Changed under mu_ when no call is under
  // way, so calls read it without the lock.
  std::unique_ptr<Client> client_;

  mutable Mutex mu_;
  int call_count_ ABSL_GUARDED_BY(mu_) = 0;  // Calls under way.
  // True if Close was called.
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  // True if a thread is in AwaitJoined.
  bool is_joining_ ABSL_GUARDED_BY(mu_) = false;
  // True if AwaitJoined has succeeded.
  bool has_joined_ ABSL_GUARDED_BY(mu_) = false;
  std::string error_ ABSL_GUARDED_BY(mu_);  // See error().
  // Values of the last Gather.
  std::vector<std::string> gathered_ ABSL_GUARDED_BY(mu_);
  std::optional<DeviceTurn> turn_ ABSL_GUARDED_BY(mu_);  // See TakeTurn.
};

// All open clients of the C interface, by handle. A handle is a number that is
// never used again. So the table notices a handle that is wrong or closed, and
// does not touch freed memory. When the process exits, the table closes the
// clients that no call uses. Thread-safe; there is one table, which is never
// destroyed.
class ClientTable {
 public:
  // Returns the one table.
  static ClientTable& Get();

  // Adds a client. Returns its handle.
  nereus_client* Add(std::unique_ptr<Client> client) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the entry of a handle; null if there is none.
  std::shared_ptr<ClientEntry> Find(nereus_client* handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a handle and returns its entry; null if there is none.
  std::shared_ptr<ClientEntry> Remove(nereus_client* handle)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Closes all clients that no call uses. Their handles stay in the table.
  void CloseIdle() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  uintptr_t last_handle_ ABSL_GUARDED_BY(mu_) = 0;  // Last handle given.
  // Entries by handle. Calls that use an entry own it, too.
  std::map<uintptr_t, std::shared_ptr<ClientEntry>> entries_
      ABSL_GUARDED_BY(mu_);
};

// Makes CheckNotForked fail in processes that are forked from this one from now
// on. Called before the first client is made: a client starts threads at once,
// and a forked process does not have them. A process that was forked earlier
// may use the library.
void WatchForks();
// Returns OK, or kFailedPrecondition in a process that was forked after
// WatchForks. This process does not have the threads of its parent's clients,
// so locks that they held stay locked for ever. Takes no lock.
absl::Status CheckNotForked();

// Stores the text of the calling thread's last failed call (nereus_last_error).
// Returns the code of `status`.
nereus_code ReturnCode(const absl::Status& status);
// Returns the text that ReturnCode has stored on the calling thread; "" if
// none.
const char* LastError();

}  // namespace nereus
