#pragma once

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/plan/route.h"
#include "common/protocol/job_options.h"
#include "common/protocol/membership.h"
#include "proto/coordinator.pb.h"
#include "proto/plan.pb.h"

namespace nereus {

// Protobuf type that belongs to an enum of ours, and the last value of our
// enum. A value of the Protobuf type is our value plus one: 0 means that the
// sender has not set the field, which is an error.
template <typename Enum>
struct ProtoEnum;
template <>
struct ProtoEnum<LayerKind> {
  using Type = v1::LayerSpec::Kind;
  static constexpr LayerKind kLast = LayerKind::kVector;
};
template <>
struct ProtoEnum<Scheme> {
  using Type = v1::Route::Scheme;
  static constexpr Scheme kLast = Scheme::kRing;
};
template <>
struct ProtoEnum<Role> {
  using Type = v1::Member::Role;
  static constexpr Role kLast = Role::kShard;
};
template <>
struct ProtoEnum<OptimizerPlace> {
  using Type = v1::OptimizerPlace;
  static constexpr OptimizerPlace kLast = OptimizerPlace::kWorker;
};
template <>
struct ProtoEnum<JobState> {
  using Type = v1::JobState;
  static constexpr JobState kLast = JobState::kLost;
};
template <>
struct ProtoEnum<LongWork::Kind> {
  using Type = v1::LongWork::Kind;
  static constexpr LongWork::Kind kLast = LongWork::Kind::kMultiply;
};

// Returns the Protobuf value that stands for `value`.
template <typename Enum>
typename ProtoEnum<Enum>::Type EnumToProto(Enum value) {
  return static_cast<typename ProtoEnum<Enum>::Type>(static_cast<int>(value) +
                                                     1);
}

// Returns the error for a Protobuf value that this build does not know.
inline absl::Status UnknownEnum(absl::string_view field, int value) {
  return InvalidArgumentError(field, " has the unknown value ", value);
}

// Returns the value of our enum that `value` stands for. Errors:
// kInvalidArgument, with the name of the field and the number.
template <typename Enum>
absl::StatusOr<Enum> EnumFromProto(absl::string_view field,
                                   typename ProtoEnum<Enum>::Type value) {
  const int number = static_cast<int>(value);
  if (number < 1 || number > static_cast<int>(ProtoEnum<Enum>::kLast) + 1) {
    return UnknownEnum(field, number);
  }
  return static_cast<Enum>(number - 1);
}

// These lines check one value in the middle of each enum that has more than two
// values. Otherwise, if one of the two enums got a new value before this one,
// later values would no longer match, and nothing would notice it.
static_assert(static_cast<int>(LayerKind::kEmbedding) + 1 ==
              v1::LayerSpec::KIND_EMBEDDING);
static_assert(static_cast<int>(Scheme::kFactor) + 1 ==
              v1::Route::SCHEME_FACTOR);
static_assert(static_cast<int>(JobState::kFinished) + 1 ==
              v1::JOB_STATE_FINISHED);

}  // namespace nereus
