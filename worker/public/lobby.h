#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/public/client_options.h"

namespace nereus {

// Gatherings of the processes that a launcher has started together, before they
// join the job. A process needs its model to join. Until then, this class is
// the way to agree on something, or to wait for each other:
//
//   auto lobby = NEREUS_TRY(Lobby::Enter(options, /*count=*/4));
//   if (options.rank == 0) Download();
//   NEREUS_TRY(lobby->Gather("", absl::InfiniteDuration()));  // A barrier.
//   lobby.reset();
//   ...  // Make the model, and Client::Connect.
//
// A process that was killed and is started again gets the values that the first
// processes gathered, one gathering after the other. All processes must gather
// equally often before they join, at most 64 times. The processes that wait go
// on waiting if one of them dies: the launcher starts it again, or ends the
// job.
//
// Thread-safe. The destructor must not run while another thread is in Gather.
class Lobby {
 public:
  // Makes a lobby; connects in the first Gather. `options.rank` is the number
  // of this process, and must be set. `count`: number of processes that were
  // started together. Errors: kInvalidArgument, with the value.
  static absl::StatusOr<std::unique_ptr<Lobby>> Enter(
      const ClientOptions& options, int32_t count);
  ~Lobby();

  // Collects one value of at most 64 KiB of each process. Returns all values,
  // by the numbers of the processes.
  //
  // Errors: kDeadlineExceeded, `timeout` has passed: make the same call again,
  // which goes on waiting; the value of the first call counts. The text names
  // the processes that are missing. kInvalidArgument, the value is too long.
  // kUnavailable, no coordinator has answered for
  // ClientOptions::connect_timeout. kOutOfRange, the job is finished.
  // kFailedPrecondition: the job has another number of workers than `count`;
  // the processes do not gather equally often; another thread is in Gather; or
  // Close was called. kAlreadyExists, another process has this number. Other
  // codes: the job has failed, or its coordinator has lost the answers.
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view value,
                                                  absl::Duration timeout);

  // Makes a Gather that waits in another thread return, and all later ones.
  void Close();

 private:
  struct Impl;
  explicit Lobby(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
