#include "common/messages/codec.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace nereus {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns `duration` or, if it is longer, 10,000 years: the limit of
// google::protobuf::Duration. Without this limit, an infinite duration would
// overflow.
absl::Duration Bounded(absl::Duration duration) {
  const absl::Duration longest = absl::Seconds(315576000000);
  return std::clamp(duration, -longest, longest);
}

// Functions of Reflection for a type of scalars.
template <typename T>
struct Access;
#define NEREUS_ACCESS(type, name)                                  \
  template <>                                                      \
  struct Access<type> {                                            \
    static constexpr auto kGet = &Reflection::Get##name;           \
    static constexpr auto kGetAt = &Reflection::GetRepeated##name; \
    static constexpr auto kSet = &Reflection::Set##name;           \
    static constexpr auto kAdd = &Reflection::Add##name;           \
  }
NEREUS_ACCESS(bool, Bool);
NEREUS_ACCESS(int32_t, Int32);
NEREUS_ACCESS(uint32_t, UInt32);
NEREUS_ACCESS(int64_t, Int64);
NEREUS_ACCESS(uint64_t, UInt64);
NEREUS_ACCESS(float, Float);
NEREUS_ACCESS(double, Double);
NEREUS_ACCESS(std::string, String);
#undef NEREUS_ACCESS

// Returns a value in the form in which it travels.
template <typename T>
T Travelling(const FieldDescriptor& field, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    const bool is_text = field.type() == FieldDescriptor::TYPE_STRING;
    if (is_text && !absl::c_all_of(value, absl::ascii_isascii)) {
      return absl::CHexEscape(value);
    }
  }
  return value;
}

}  // namespace

const FieldDescriptor& Codec::Find(const char* name) const {
  const FieldDescriptor* const field =
      in_.GetDescriptor()->FindFieldByName(name);
  NEREUS_CHECK(field != nullptr)
      << in_.GetDescriptor()->full_name() << " has no field " << name;
  return *field;
}

bool Codec::Has(const char* name) const {
  return in_.GetReflection()->HasField(in_, &Find(name));
}

void Codec::AtMost(const char* name, int64_t most) {
  Verify([&]() -> absl::Status {
    const int size = Size(Find(name));
    if (size <= most) return absl::OkStatus();
    return InvalidArgumentError(in_.GetDescriptor()->name(), " has ", size, " ",
                                name, ", at most ", most, " are allowed");
  });
}

template <typename T>
T Codec::Get(const FieldDescriptor& field) const {
  return (in_.GetReflection()->*Access<T>::kGet)(in_, &field);
}
template <typename T>
T Codec::GetAt(const FieldDescriptor& field, int index) const {
  return (in_.GetReflection()->*Access<T>::kGetAt)(in_, &field, index);
}
template <typename T>
void Codec::Set(const FieldDescriptor& field, const T& value) {
  (out_->GetReflection()->*Access<T>::kSet)(out_, &field,
                                            Travelling(field, value));
}
template <typename T>
void Codec::Add(const FieldDescriptor& field, const T& value) {
  (out_->GetReflection()->*Access<T>::kAdd)(out_, &field,
                                            Travelling(field, value));
}
#define NEREUS_SCALAR(type)                                            \
  template type Codec::Get<type>(const FieldDescriptor&) const;        \
  template type Codec::GetAt<type>(const FieldDescriptor&, int) const; \
  template void Codec::Set<type>(const FieldDescriptor&, const type&); \
  template void Codec::Add<type>(const FieldDescriptor&, const type&)
NEREUS_SCALAR(bool);
NEREUS_SCALAR(int32_t);
NEREUS_SCALAR(uint32_t);
NEREUS_SCALAR(int64_t);
NEREUS_SCALAR(uint64_t);
NEREUS_SCALAR(float);
NEREUS_SCALAR(double);
NEREUS_SCALAR(std::string);
#undef NEREUS_SCALAR

int Codec::Size(const FieldDescriptor& field) const {
  return in_.GetReflection()->FieldSize(in_, &field);
}

int Codec::GetEnum(const FieldDescriptor& field) const {
  return in_.GetReflection()->GetEnumValue(in_, &field);
}

void Codec::SetEnum(const FieldDescriptor& field, int number) {
  out_->GetReflection()->SetEnumValue(out_, &field, number);
}

void Codec::UnknownEnum(const FieldDescriptor& field, int number) {
  *status_ =
      InvalidArgumentError(field.containing_type()->name(), ".", field.name(),
                           " has the unknown value ", number);
}

void Codec::EnumNumber(const char* name, int& number) {
  if (!status_->ok()) return;
  if (!reads()) return SetEnum(Find(name), number);
  number = GetEnum(Find(name));
}

void Codec::NothingOf() {
  *status_ = InvalidArgumentError(in_.GetDescriptor()->name(),
                                  " is empty, or of an unknown kind");
}

const Message& Codec::Sub(const FieldDescriptor& field) const {
  return in_.GetReflection()->GetMessage(in_, &field);
}

const Message& Codec::SubAt(const FieldDescriptor& field, int index) const {
  return in_.GetReflection()->GetRepeatedMessage(in_, &field, index);
}

Message* Codec::MakeSub(const FieldDescriptor& field) {
  return out_->GetReflection()->MutableMessage(out_, &field);
}

Message* Codec::AddSub(const FieldDescriptor& field) {
  return out_->GetReflection()->AddMessage(out_, &field);
}

void Codec::CopyTime(const FieldDescriptor& field, absl::Duration& time) {
  if (reads()) {
    const auto& message =
        static_cast<const google::protobuf::Duration&>(Sub(field));
    time = Bounded(absl::Seconds(message.seconds()) +
                   absl::Nanoseconds(message.nanos()));
    return;
  }
  auto& message = static_cast<google::protobuf::Duration&>(*MakeSub(field));
  absl::Duration rest = Bounded(time);
  message.set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
  message.set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(rest)));
}

void Codec::CopyTime(const FieldDescriptor& field, absl::Time& time) {
  if (reads()) {
    const auto& message =
        static_cast<const google::protobuf::Timestamp&>(Sub(field));
    time = absl::FromUnixSeconds(message.seconds()) +
           absl::Nanoseconds(message.nanos());
    return;
  }
  auto& message = static_cast<google::protobuf::Timestamp&>(*MakeSub(field));
  message.set_seconds(absl::ToUnixSeconds(time));
  message.set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(
      time - absl::FromUnixSeconds(message.seconds()))));
}

absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return InvalidArgumentError(field, " is ", value, ", must be ", minimum,
                              " or more");
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgumentError(field, " is ", value, ", must be from ", least,
                              " to ", most);
}

}  // namespace nereus
