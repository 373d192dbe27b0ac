#include "common/messages/gathering_messages.h"

#include <cstdint>
#include <string>

#include "common/messages/fields.h"
#include "common/protocol/job_options.h"

namespace nereus {
namespace {

// `message`: Gather or Gathered.
template <typename Message>
absl::StatusOr<GatheringId> IdFrom(const Message& message) {
  NEREUS_TRY(CheckStep("a gathering's step", message.step(), kInitialRound));
  NEREUS_TRY(CheckAtLeast("a gathering's index", message.index(), 0));
  if (message.step() != kInitialRound && message.went_back_in() != 0) {
    return InvalidArgumentError("a gathering after step ", message.step(),
                                " has went_back_in ", message.went_back_in());
  }
  return GatheringId{message.step(), message.index(), message.went_back_in()};
}

absl::StatusOr<int32_t> LobbyIndexFrom(int32_t index) {
  if (index >= 0 && index < kLobbyGatheringsMax) return index;
  return InvalidArgumentError("a gathering in the lobby has the index ", index,
                              ", must be in [0, ", kLobbyGatheringsMax, ")");
}

template <typename Message>
void SetId(const GatheringId& id, Message& message) {
  message.set_step(id.step);
  message.set_index(id.index);
  message.set_went_back_in(id.went_back_in);
}

}  // namespace

v1::Gather ToProto(const Gather& gather) {
  v1::Gather message;
  SetId(gather.id, message);
  message.set_value(gather.value);
  return message;
}

absl::StatusOr<Gather> FromProto(const v1::Gather& message) {
  const GatheringId id = NEREUS_TRY(IdFrom(message));
  return Gather{id, message.value()};
}

v1::Gathered ToProto(const Gathered& gathered) {
  v1::Gathered message;
  SetId(gathered.id, message);
  for (const std::string& value : gathered.values) message.add_values(value);
  message.set_error(TextField(gathered.error));
  return message;
}

absl::StatusOr<Gathered> FromProto(const v1::Gathered& message) {
  Gathered gathered;
  gathered.id = NEREUS_TRY(IdFrom(message));
  gathered.values.assign(message.values().begin(), message.values().end());
  gathered.error = message.error();
  return gathered;
}

v1::LobbyGather ToProto(const LobbyGather& gather) {
  v1::LobbyGather message;
  message.set_protocol_version(gather.protocol_version);
  message.set_build(gather.build);
  message.set_job(TextField(gather.job));
  message.set_number(gather.number);
  message.set_count(gather.count);
  message.set_index(gather.index);
  message.set_value(gather.value);
  message.set_incarnation(gather.incarnation);
  return message;
}

absl::StatusOr<LobbyGather> FromProto(const v1::LobbyGather& message) {
  LobbyGather gather;
  gather.protocol_version = message.protocol_version();
  gather.build = message.build();
  gather.job = message.job();
  gather.number = message.number();
  gather.count = message.count();
  NEREUS_TRY(CheckAtLeast("a process's number", gather.number, 0));
  NEREUS_TRY(CheckAtLeast("the number of processes", gather.count,
                          int64_t{gather.number} + 1));
  gather.index = NEREUS_TRY(LobbyIndexFrom(message.index()));
  gather.value = message.value();
  gather.incarnation = message.incarnation();
  return gather;
}

v1::LobbyGathered ToProto(const LobbyGathered& gathered) {
  v1::LobbyGathered message;
  message.set_index(gathered.index);
  for (const std::string& value : gathered.values) message.add_values(value);
  message.set_error(TextField(gathered.error));
  return message;
}

absl::StatusOr<LobbyGathered> FromProto(const v1::LobbyGathered& message) {
  LobbyGathered gathered;
  gathered.index = NEREUS_TRY(LobbyIndexFrom(message.index()));
  gathered.values.assign(message.values().begin(), message.values().end());
  gathered.error = message.error();
  return gathered;
}

}  // namespace nereus
