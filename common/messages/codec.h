#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "google/protobuf/message.h"

namespace nereus {

// Copies the fields of a struct to a Protobuf message or back, by one list of
// fields for both directions:
//
//   void Fields(Codec& c, Leave& leave) {
//     c("last_step", leave.last_step);
//     c("epoch", leave.epoch);
//     c("early", leave.early);
//   }
//
// A name is that of the message's field. A field of the struct is a number, a
// bool, a string, an enum, a Duration, a Time, a struct with such a list, or an
// optional, a vector, a set or a map of these. The number of an enum in a
// message is its value plus one: 0 means that the sender has not set the field,
// which is an error. A map is a list of messages with the fields `key` and
// `value`, as Protobuf's own maps are on the wire. Those have no fixed order,
// and a program with ThreadSanitizer cannot use them with a library that was
// compiled without. Strings of Protobuf must be UTF-8, and a text may quote any
// bytes: bytes that are not ASCII travel as C escapes ("\xc3"), but in fields
// of type `bytes` as they are.
//
// Messages come from the network, and may be hostile. While it reads, a codec
// checks that enums are known. Lists add their own checks (Verify, AtMost);
// what else a reader must check is its own business. After an error the codec
// reads no more, and the struct must not be used. Errors: kInvalidArgument,
// with the field and its value.
class Codec {
 public:
  // Writes to `message`, which the caller owns.
  explicit Codec(google::protobuf::Message* message)
      : in_(*message), out_(message), status_(&own_status_) {}
  // Reads from `message`. Notes the first error in `status`, which is OK now.
  Codec(const google::protobuf::Message& message, absl::Status* status)
      : in_(message), out_(nullptr), status_(status) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  bool reads() const { return out_ == nullptr; }

  // Copies one field.
  template <typename T>
  void operator()(const char* name, T& value);

  // Copies a field that a message lacks if it has the value `absent`.
  template <typename T>
  void Unless(const T& absent, const char* name, T& value) {
    if (!reads()) {
      if (value != absent) (*this)(name, value);
    } else if (Has(name)) {
      (*this)(name, value);
    } else {
      value = absent;
    }
  }

  // Copies the alternative that a variant holds, and nothing else. `names`:
  // field of each alternative. A message without any of these fields is empty,
  // or has an alternative that only a newer build knows: an error.
  template <typename... Ts>
  void OneOf(const char* const (&names)[sizeof...(Ts)],
             std::variant<Ts...>& value);

  // Copies the number of a Protobuf enum, unchecked. For enums of ours whose
  // numbers are those of the Protobuf enum.
  void EnumNumber(const char* name, int& number);

  // True if a message that is read has the field.
  bool Has(const char* name) const;

  // Reading: refuses more than `most` elements in a field before they are read.
  void AtMost(const char* name, int64_t most);

  // Reading: notes the error that `check` returns. `check` is called only if
  // there was no error before.
  template <typename F>
  void Verify(F check) {
    if (reads() && status_->ok()) *status_ = check();
  }

 private:
  using Message = google::protobuf::Message;
  using FieldDescriptor = google::protobuf::FieldDescriptor;

  template <typename T>
  static constexpr bool kIsScalar =
      std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

  const FieldDescriptor& Find(const char* name) const;

  // Read or write a scalar. Defined for each scalar type. GetAt and Add are for
  // elements of repeated fields.
  template <typename T>
  T Get(const FieldDescriptor& field) const;
  template <typename T>
  T GetAt(const FieldDescriptor& field, int index) const;
  template <typename T>
  void Set(const FieldDescriptor& field, const T& value);
  template <typename T>
  void Add(const FieldDescriptor& field, const T& value);
  int Size(const FieldDescriptor& field) const;
  int GetEnum(const FieldDescriptor& field) const;
  void SetEnum(const FieldDescriptor& field, int number);
  void UnknownEnum(const FieldDescriptor& field, int number);
  void NothingOf();  // Notes that a message has no alternative.
  // Return a message in a field, or an element of one.
  const Message& Sub(const FieldDescriptor& field) const;
  const Message& SubAt(const FieldDescriptor& field, int index) const;
  Message* MakeSub(const FieldDescriptor& field);
  Message* AddSub(const FieldDescriptor& field);
  // Copy the field `name`, a Protobuf Duration or Timestamp.
  void CopyTime(const FieldDescriptor& field, absl::Duration& time);
  void CopyTime(const FieldDescriptor& field, absl::Time& time);

  template <typename T>
  void CopyElements(const FieldDescriptor& field, const T& elements);
  template <typename U>
  U ReadElement(const FieldDescriptor& field, int index);

  const Message& in_;
  Message* const out_;  // Null: reads.
  absl::Status* const status_;
  absl::Status own_status_;  // For a codec that writes; always OK.
};

// Writes `value` to `message`.
template <typename T>
void Encode(const T& value, google::protobuf::Message* message) {
  Codec codec(message);
  Fields(codec, const_cast<T&>(value));  // A codec that writes changes nothing.
}

// Returns `value` as a message of type M.
template <typename M, typename T>
M Encoded(const T& value) {
  M message;
  Encode(value, &message);
  return message;
}

// Returns the struct in `message`. Errors: those of Codec.
template <typename T>
absl::StatusOr<T> Decoded(const google::protobuf::Message& message) {
  absl::Status status;
  T value = {};
  Codec codec(message, &status);
  Fields(codec, value);
  if (!status.ok()) return status;
  return value;
}

// Returns OK if value >= minimum; else kInvalidArgument, with the name of the
// field and both values.
absl::Status CheckAtLeast(absl::string_view field, int64_t value,
                          int64_t minimum);
// Returns OK if `value` is in [least, most]; else kInvalidArgument.
absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most);

// Entries of a map, in the map and on their way to it.
template <typename K, typename V>
void Fields(Codec& c, std::pair<const K, V>& entry) {
  c("key", const_cast<K&>(entry.first));
  c("value", entry.second);
}

namespace internal {

template <typename K, typename V>
struct NewEntry {
  K key = {};
  V value = {};
};
template <typename K, typename V>
void Fields(Codec& c, NewEntry<K, V>& entry) {
  c("key", entry.key);
  c("value", entry.value);
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};
template <typename T>
struct IsMap : std::false_type {};
template <typename K, typename V>
struct IsMap<std::map<K, V>> : std::true_type {};
template <typename T>
struct IsSet : std::false_type {};
template <typename T>
struct IsSet<std::set<T>> : std::true_type {};

}  // namespace internal

template <typename U>
U Codec::ReadElement(const FieldDescriptor& field, int index) {
  if constexpr (kIsScalar<U>) {
    return GetAt<U>(field, index);
  } else {
    U value = {};
    Codec sub(SubAt(field, index), status_);
    Fields(sub, value);
    return value;
  }
}

template <typename T>
void Codec::CopyElements(const FieldDescriptor& field, const T& elements) {
  using Element = typename T::value_type;
  for (const Element& each : elements) {
    if constexpr (kIsScalar<Element>) {
      Add<Element>(field, each);
    } else {
      Codec sub(AddSub(field));
      Fields(sub, const_cast<Element&>(each));
    }
  }
}

template <typename... Ts>
void Codec::OneOf(const char* const (&names)[sizeof...(Ts)],
                  std::variant<Ts...>& value) {
  if (!reads()) {
    const char* const name = names[value.index()];
    return std::visit([&](auto& each) { (*this)(name, each); }, value);
  }
  const auto read = [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    return ((Has(names[kIndices]) &&
             ((*this)(names[kIndices], value.template emplace<kIndices>()),
              true)) ||
            ...);
  };
  if (!read(std::index_sequence_for<Ts...>())) NothingOf();
}

template <typename T>
void Codec::operator()(const char* name, T& value) {
  if (!status_->ok()) return;
  const FieldDescriptor& field = Find(name);
  constexpr bool kIsTime =
      std::is_same_v<T, absl::Duration> || std::is_same_v<T, absl::Time>;
  if constexpr (kIsScalar<T>) {
    if (reads()) {
      value = Get<T>(field);
    } else {
      Set<T>(field, value);
    }
  } else if constexpr (std::is_enum_v<T>) {
    if (!reads()) return SetEnum(field, static_cast<int>(value) + 1);
    const int number = GetEnum(field);
    if (number < 1 || number > EnumeratorCount<T>()) {
      return UnknownEnum(field, number);
    }
    value = static_cast<T>(number - 1);
  } else if constexpr (kIsTime) {
    CopyTime(field, value);
  } else if constexpr (internal::IsOptional<T>::value) {
    if (!reads()) {
      if (value.has_value()) (*this)(name, *value);
    } else if (Has(name)) {
      (*this)(name, value.emplace());
    } else {
      value.reset();
    }
  } else if constexpr (internal::IsVector<T>::value) {
    if (!reads()) return CopyElements(field, value);
    value.clear();
    value.reserve(Size(field));
    for (int i = 0; i < Size(field) && status_->ok(); ++i) {
      value.push_back(ReadElement<typename T::value_type>(field, i));
    }
  } else if constexpr (internal::IsSet<T>::value) {
    if (!reads()) return CopyElements(field, value);
    for (int i = 0; i < Size(field) && status_->ok(); ++i) {
      value.insert(ReadElement<typename T::value_type>(field, i));
    }
  } else if constexpr (internal::IsMap<T>::value) {
    if (!reads()) return CopyElements(field, value);
    for (int i = 0; i < Size(field) && status_->ok(); ++i) {
      auto entry = ReadElement<
          internal::NewEntry<typename T::key_type, typename T::mapped_type>>(
          field, i);
      value[std::move(entry.key)] = std::move(entry.value);
    }
  } else if constexpr (requires { OnlyText(value); }) {
    (*this)(name, OnlyText(value));
  } else if (reads()) {
    Codec sub(Sub(field), status_);
    Fields(sub, value);
  } else {
    Codec sub(MakeSub(field));
    Fields(sub, value);
  }
}

}  // namespace nereus
