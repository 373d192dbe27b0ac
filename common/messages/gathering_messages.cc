#include "common/messages/gathering_messages.h"

#include <cstdint>
#include <string>

#include "common/messages/fields.h"
#include "common/protocol/job_options.h"

namespace nereus {
namespace {

absl::StatusOr<GatheringId> IdFrom(int64_t step, int32_t index) {
  NEREUS_TRY(CheckStep("a gathering's step", step, kInitialRound));
  NEREUS_TRY(CheckAtLeast("a gathering's index", index, 0));
  return GatheringId{step, index};
}

}  // namespace

v1::Gather ToProto(const Gather& gather) {
  v1::Gather message;
  message.set_step(gather.id.step);
  message.set_index(gather.id.index);
  message.set_value(gather.value);
  return message;
}

absl::StatusOr<Gather> FromProto(const v1::Gather& message) {
  const GatheringId id = NEREUS_TRY(IdFrom(message.step(), message.index()));
  return Gather{id, message.value()};
}

v1::Gathered ToProto(const Gathered& gathered) {
  v1::Gathered message;
  message.set_step(gathered.id.step);
  message.set_index(gathered.id.index);
  for (const std::string& value : gathered.values) message.add_values(value);
  message.set_error(TextField(gathered.error));
  return message;
}

absl::StatusOr<Gathered> FromProto(const v1::Gathered& message) {
  Gathered gathered;
  gathered.id = NEREUS_TRY(IdFrom(message.step(), message.index()));
  gathered.values.assign(message.values().begin(), message.values().end());
  gathered.error = message.error();
  return gathered;
}

}  // namespace nereus
