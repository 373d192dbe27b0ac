#include "common/messages/activity_messages.h"

#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/messages/job_messages.h"

namespace nereus {

v1::PhaseTimes ToProto(const PhaseTimes& times) {
  v1::PhaseTimes message;
  *message.mutable_forward() = DurationToProto(times.forward);
  *message.mutable_backward() = DurationToProto(times.backward);
  *message.mutable_other() = DurationToProto(times.other);
  *message.mutable_waiting() = DurationToProto(times.waiting);
  return message;
}

PhaseTimes FromProto(const v1::PhaseTimes& message) {
  return {DurationFromProto(message.forward()),
          DurationFromProto(message.backward()),
          DurationFromProto(message.other()),
          DurationFromProto(message.waiting())};
}

v1::Activity ToProto(const Activity& activity) {
  v1::Activity message;
  message.set_steps(activity.steps);
  *message.mutable_times() = ToProto(activity.times);
  message.set_bytes_sent(activity.bytes_sent);
  message.set_bytes_received(activity.bytes_received);
  if (activity.busiest.has_value()) {
    v1::Activity::BusyLink& busiest = *message.mutable_busiest();
    *busiest.mutable_peer() = ToProto(activity.busiest->peer);
    busiest.set_share(activity.busiest->share);
    if (activity.busiest->others.has_value()) {
      busiest.set_others(*activity.busiest->others);
    }
  }
  return message;
}

absl::StatusOr<Activity> FromProto(const v1::Activity& message) {
  Activity activity;
  activity.steps = message.steps();
  activity.times = FromProto(message.times());
  activity.bytes_sent = message.bytes_sent();
  activity.bytes_received = message.bytes_received();
  if (message.has_busiest()) {
    activity.busiest.emplace();
    activity.busiest->peer = NEREUS_TRY(FromProto(message.busiest().peer()));
    activity.busiest->share = message.busiest().share();
    if (message.busiest().has_others()) {
      activity.busiest->others = message.busiest().others();
    }
  }
  return activity;
}

v1::LongWork ToProto(const LongWork& work) {
  v1::LongWork message;
  message.set_kind(EnumToProto(work.kind));
  message.set_done(work.done);
  message.set_total(work.total);
  return message;
}

absl::StatusOr<LongWork> FromProto(const v1::LongWork& message) {
  LongWork work;
  work.kind = NEREUS_TRY(
      EnumFromProto<LongWork::Kind>("the kind of long work", message.kind()));
  work.done = message.done();
  work.total = message.total();
  if (work.done >= 0 && work.done <= work.total) return work;
  return InvalidArgumentError("long work is done by ", work.done, " of ",
                              work.total);
}

v1::Measured ToProto(const Measured& measured) {
  v1::Measured message;
  for (const LayerTime& time : measured.times) {
    v1::Measured::LayerTime* added = message.add_times();
    *added->mutable_forward() = DurationToProto(time.forward);
    *added->mutable_backward() = DurationToProto(time.backward);
  }
  *message.mutable_step_time() = DurationToProto(measured.step_time);
  if (measured.link.has_value()) {
    v1::Measured::Link& link = *message.mutable_link();
    link.set_rate(measured.link->rate);
    *link.mutable_latency() = DurationToProto(measured.link->latency);
    *link.mutable_message_time() = DurationToProto(measured.link->message_time);
  }
  if (measured.memory_rate.has_value()) {
    message.set_memory_rate(*measured.memory_rate);
  }
  for (const absl::Duration time : measured.sync_times) {
    message.add_sync_seconds(static_cast<float>(absl::ToDoubleSeconds(time)));
  }
  return message;
}

Measured FromProto(const v1::Measured& message) {
  Measured measured;
  for (const v1::Measured::LayerTime& time : message.times()) {
    measured.times.push_back({DurationFromProto(time.forward()),
                              DurationFromProto(time.backward())});
  }
  measured.step_time = DurationFromProto(message.step_time());
  if (message.has_link()) {
    measured.link = {message.link().rate(),
                     DurationFromProto(message.link().latency()),
                     DurationFromProto(message.link().message_time())};
  }
  if (message.has_memory_rate()) measured.memory_rate = message.memory_rate();
  for (const float seconds : message.sync_seconds()) {
    measured.sync_times.push_back(absl::Seconds(seconds));
  }
  return measured;
}

}  // namespace nereus
