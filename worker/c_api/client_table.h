#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "worker/c_api/bound_client.h"
#include "worker/c_api/nereus.h"

namespace nereus {

// Client behind one handle, and the calls on it. A client is destroyed only
// when no call uses it: a caller in another language may close it on a thread
// while another thread still waits. Thread-safe.
class ClientEntry {
 public:
  explicit ClientEntry(std::unique_ptr<BoundClient> client)
      : client_(std::move(client)) {}

  // Begins a call. The caller calls End once for each Begin that returned OK.
  // Errors, of which Begin stores the text: kInvalidArgument, the client was
  // closed; kFailedPrecondition, with `needs_joined`: AwaitJoined has not
  // succeeded yet.
  absl::Status Begin(bool needs_joined) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a call. Stores the text of `status` if it is an error.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the client has joined the job. REQUIRES: within a call. Errors:
  // kFailedPrecondition, another thread is in AwaitJoined; those of
  // BoundClient::AwaitJoined.
  absl::Status AwaitJoined(absl::Duration timeout, CUstream_st* stream)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Collects a value of each worker (Client::Gather) and keeps them. Returns
  // their number. REQUIRES: within a call.
  absl::StatusOr<int32_t> Gather(absl::string_view value,
                                 absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a value of the last Gather that has returned OK. Errors:
  // kInvalidArgument, there is no such value.
  absl::StatusOr<std::string> Gathered(int32_t index) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Refuses calls from now on, waits until the calls under way have ended, and
  // destroys the client, unless another thread destroys it. Returns true then.
  // Without `waits`, returns false and does nothing if a call is under way.
  bool Close(bool waits) ABSL_LOCKS_EXCLUDED(mu_);

  // Text of the last call that failed.
  std::string error() const ABSL_LOCKS_EXCLUDED(mu_);

  // The client. REQUIRES: within a call.
  BoundClient& client() { return *client_; }

 private:
  // Returns the error of Begin.
  absl::Status CheckMayBegin(bool needs_joined) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Null once it is closed. Changed under mu_, when no call is under way.
  std::unique_ptr<BoundClient> client_;

  mutable Mutex mu_;
  int call_count_ ABSL_GUARDED_BY(mu_) = 0;       // Calls under way.
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;   // Close was called.
  bool is_joining_ ABSL_GUARDED_BY(mu_) = false;  // A thread is in AwaitJoined.
  bool has_joined_ ABSL_GUARDED_BY(mu_) = false;  // AwaitJoined has succeeded.
  std::string error_ ABSL_GUARDED_BY(mu_);        // See error().
  // Values of the last Gather.
  std::vector<std::string> gathered_ ABSL_GUARDED_BY(mu_);
};

// All open clients of the C interface, by handle. A handle is a number that is
// never used again. So the table notices a handle that is wrong or closed, and
// does not touch freed memory. When the process exits, it closes the clients
// that no call uses. Thread-safe; there is one table, which is never destroyed.
class ClientTable {
 public:
  static ClientTable& Get();

  // Adds a client. Returns its handle.
  nereus_client* Add(std::unique_ptr<BoundClient> client)
      ABSL_LOCKS_EXCLUDED(mu_);
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
  // Entries by handle. Shared with the calls that use them.
  std::map<uintptr_t, std::shared_ptr<ClientEntry>> entries_
      ABSL_GUARDED_BY(mu_);
};

// Makes CheckNotForked fail in processes that are forked from now on. Called
// before the first client is made, because a client starts threads at once and
// a fork does not copy them. A process that was forked earlier may use the
// library.
void WatchForks();
// Returns OK, or kFailedPrecondition in a process that was forked after
// WatchForks. Such a process does not have the threads of its parent's clients,
// and their locks may stay locked for ever. Takes no lock.
absl::Status CheckNotForked();

// Stores the text of the calling thread's last failed call (nereus_last_error).
// Returns the code of `status`.
nereus_code ReturnCode(const absl::Status& status);
// Returns the text that ReturnCode has stored.
const char* LastError();

}  // namespace nereus
