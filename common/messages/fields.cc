#include "common/messages/fields.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Returns `duration` or, if it is longer, 10,000 years: the limit of
// google::protobuf::Duration. Without this limit, an infinite duration would
// overflow the arithmetic of DurationToProto.
absl::Duration Bounded(absl::Duration duration) {
  const absl::Duration longest = absl::Seconds(315576000000);
  return std::clamp(duration, -longest, longest);
}

}  // namespace

std::string TextField(absl::string_view text) {
  const bool ascii = absl::c_all_of(text, absl::ascii_isascii);
  return ascii ? std::string(text) : absl::CHexEscape(text);
}

absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return InvalidArgumentError(field, " is ", value, ", must be ", minimum,
                              " or more");
}

google::protobuf::Duration DurationToProto(absl::Duration duration) {
  duration = Bounded(duration);
  google::protobuf::Duration message;
  message.set_seconds(
      absl::IDivDuration(duration, absl::Seconds(1), &duration));
  message.set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(duration)));
  return message;
}

absl::Duration DurationFromProto(const google::protobuf::Duration& message) {
  return Bounded(absl::Seconds(message.seconds()) +
                 absl::Nanoseconds(message.nanos()));
}

v1::Stall StallToProto(const Stall& stall) {
  v1::Stall message;
  message.set_layer(stall.layer);
  message.set_round(stall.round);
  message.set_missing(TextField(stall.missing));
  *message.mutable_waited() = DurationToProto(stall.waited);
  return message;
}

Stall StallFromProto(const v1::Stall& message) {
  return {message.layer(), message.round(), message.missing(),
          DurationFromProto(message.waited())};
}

}  // namespace nereus
