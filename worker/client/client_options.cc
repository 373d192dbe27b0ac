#include "worker/public/client_options.h"

#include "common/base/address.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Checks an option that must be longer than no time.
absl::Status CheckPositive(absl::string_view name, absl::Duration duration) {
  if (duration > absl::ZeroDuration()) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", absl::FormatDuration(duration),
                              ", must be positive");
}

}  // namespace

absl::Status ClientOptions::Validate() const {
  // The first error is kept.
  absl::Status status;
  status.Update(CheckHostPort("coordinator_address", coordinator_address));
  if (job.empty()) status.Update(InvalidArgumentError("job is empty"));
  if (settings.size() > kSettingsMax) {
    status.Update(InvalidArgumentError("settings has ", settings.size(),
                                       ", at most ", kSettingsMax));
  }
  status.Update(CheckHost(host));
  status.Update(CheckPort("control_port", control_port));
  status.Update(CheckPort("data_port", data_port));
  status.Update(CheckPositive("connect_timeout", connect_timeout));
  status.Update(CheckPositive("round_timeout", round_timeout));
  return status;
}

}  // namespace nereus
