#include "worker/public/client_options.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/address.h"
#include "common/base/status.h"
#include "common/protocol/peer.h"

namespace nereus {
namespace {

// Checks that `duration`, the value of the option `name`, is positive.
absl::Status CheckPositive(absl::string_view name, absl::Duration duration) {
  if (duration > absl::ZeroDuration()) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", absl::FormatDuration(duration),
                              ", must be positive");
}

// Returns the value of a variable, or nothing if it is not set or empty.
std::optional<std::string> Variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// Returns true if a variable has the value `other`, and false if it has its
// default. Errors: kInvalidArgument, it has a third value.
absl::StatusOr<bool> IsChosen(const char* name, absl::string_view standard,
                              absl::string_view other) {
  const std::string value = Variable(name).value_or(std::string(standard));
  if (value == standard || value == other) return value == other;
  return InvalidArgumentError("the variable ", name, " is \"", value,
                              "\", must be ", standard, " or ", other);
}

}  // namespace

absl::Status CheckDeviceBytes(absl::string_view name, int64_t bytes) {
  constexpr int64_t kMax = int64_t{1} << 50;
  if (bytes >= 0 && bytes <= kMax) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", bytes, ", must be from 0 to ",
                              kMax);
}

absl::StatusOr<ClientOptions> ClientOptions::FromEnvironment() {
  ClientOptions options;
  const std::pair<const char*, std::string*> texts[] = {
      {"NEREUS_COORDINATOR", &options.coordinator_address},
      {"NEREUS_JOB_NAME", &options.job},
      {"NEREUS_NAME", &options.name},
      {"NEREUS_HOST", &options.address.host},
      {"NEREUS_LISTEN", &options.address.listen},
      {"NEREUS_NODE", &options.node},
      {"NEREUS_SHARE", &options.share.folder}};
  for (const auto& [name, field] : texts) {
    *field = Variable(name).value_or(*field);
  }
  const std::pair<const char*, int*> ports[] = {
      {"NEREUS_CONTROL_PORT", &options.address.control_port},
      {"NEREUS_DATA_PORT", &options.address.data_port},
      {"NEREUS_HTTP_PORT", &options.address.http_port}};
  for (const auto& [name, field] : ports) {
    const std::optional<std::string> value = Variable(name);
    // Kubernetes sets such a variable for a Service nereus-data.
    const bool is_of_service =
        value.has_value() && absl::StrContains(*value, "://");
    if (!value.has_value() || is_of_service ||
        absl::SimpleAtoi(*value, field)) {
      continue;
    }
    return InvalidArgumentError("the variable ", name, " is \"", *value,
                                "\", which is not a number");
  }
  // On one host the number of the process on its host is its number in the job.
  for (const char* const name : {"NEREUS_LOCAL_RANK", "NEREUS_RANK"}) {
    const std::optional<std::string> value = Variable(name);
    if (!value.has_value()) continue;
    if (!absl::SimpleAtoi(*value, &options.rank.emplace())) {
      return InvalidArgumentError("the variable ", name, " is \"", *value,
                                  "\", which is not a number");
    }
  }
  if (const auto value = Variable("NEREUS_CONNECT_TIMEOUT")) {
    double seconds = 0.0;
    if (!absl::SimpleAtod(*value, &seconds) || !(seconds > 0.0)) {
      return InvalidArgumentError("the variable NEREUS_CONNECT_TIMEOUT is \"",
                                  *value,
                                  "\", must be a number of seconds above 0");
    }
    options.connect_timeout = absl::Seconds(seconds);
  }
  if (const auto value = Variable("NEREUS_SHARE_WEIGHT")) {
    if (!absl::SimpleAtod(*value, &options.share.weight)) {
      return InvalidArgumentError("the variable NEREUS_SHARE_WEIGHT is \"",
                                  *value, "\", which is not a number");
    }
  }
  options.share.is_optional =
      NEREUS_TRY(IsChosen("NEREUS_SHARE_OPTIONAL", "off", "on"));
  const bool without_memory =
      NEREUS_TRY(IsChosen("NEREUS_SHARED_MEMORY", "auto", "off"));
  options.shared_memory = !without_memory;
  return options;
}

absl::Status ClientOptions::Validate() const {
  // Status::Update keeps the first error.
  absl::Status status;
  status.Update(
      coordinator_address.empty()
          ? InvalidArgumentError(
                "coordinator_address is empty, must be HOST:PORT; the variable "
                "NEREUS_COORDINATOR gives it, and `nereusctl run` sets that")
          : CheckHostPort("coordinator_address", coordinator_address));
  if (job.empty()) status.Update(InvalidArgumentError("job is empty"));
  if (settings.size() > kSettingsMax) {
    status.Update(InvalidArgumentError("settings has ", settings.size(),
                                       ", at most ", kSettingsMax));
  }
  if (rank.has_value() && (*rank < 0 || *rank >= kRanksMax)) {
    status.Update(InvalidArgumentError("rank is ", *rank, ", must be in [0, ",
                                       kRanksMax, ")"));
  }
  status.Update(address.Validate());
  status.Update(CheckPositive("connect_timeout", connect_timeout));
  status.Update(CheckPositive("round_timeout", round_timeout));
  status.Update(CheckPositive("stall_threshold", stall_threshold));
  status.Update(CheckPositive("share.limit", share.limit));
  if (!(share.weight >= 0.01 && share.weight <= 100)) {
    status.Update(InvalidArgumentError("share.weight is ", share.weight,
                                       ", must be from 0.01 to 100"));
  }
  for (const auto& [name, bytes] :
       {std::pair("share.memory_bytes", share.memory_bytes),
        std::pair("share.resident_bytes", share.resident_bytes),
        std::pair("share.turn_bytes", share.turn_bytes)}) {
    status.Update(CheckDeviceBytes(name, bytes));
  }
  return status;
}

}  // namespace nereus
