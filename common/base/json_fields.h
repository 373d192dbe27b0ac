#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "nlohmann/json_fwd.hpp"

namespace nereus {

// Parses a text that another process has written. Levels below the eighth are
// left out, because the library recurses. A text that is no JSON gives a value
// that JsonFields refuses.
nlohmann::json ParseJson(absl::string_view text);

// Fields of one JSON object, for reading and for writing: one function lists
// the fields of a type, and the direction is that of the constructor.
//
//   void ListFields(JsonFields& fields, Point& point) {
//     fields.Count("x", point.x);
//     fields.Text("label", point.label);
//   }
//
// A reader takes hostile input: a field that is missing, has another type or is
// out of range is a mistake, and unknown fields are ignored. The first mistake
// stays in status(), and fields after it keep their values. So a caller reads
// all fields and then checks once. A writer makes no mistakes: it checks
// nothing.
class JsonFields {
 public:
  // Largest value of Count: no run comes near it, and sums do not overflow.
  static constexpr int64_t kCountMax = int64_t{1} << 56;

  // Reads `object`, which must outlive this. `where` names it in messages.
  JsonFields(const nlohmann::json& object, std::string where);
  // Writes into `object`, which must outlive this, in the order of the calls.
  explicit JsonFields(nlohmann::ordered_json& object) : out_(&object) {}

  bool is_reading() const { return in_ != nullptr; }

  // Each transfers field `name`.
  void Flag(const char* name, bool& value);
  void Text(const char* name, std::string& value);
  // A number that is not finite is written as null, which Number refuses and
  // NumberOrNan reads as NaN.
  void Number(const char* name, double& value);
  void NumberOrNan(const char* name, double& value);
  void Float(const char* name, float& value);     // In the range of float32.
  void Seconds(const char* name, double& value);  // At least 0.
  void Seconds(const char* name, absl::Duration& value);

  // Transfers an integer from `min` to `max`, which T can hold.
  template <typename T>
  void Integer(const char* name, T& value, int64_t min, int64_t max) {
    int64_t wide = value;
    WideInteger(name, wide, min, max);
    value = static_cast<T>(wide);
  }
  void Count(const char* name, int64_t& value) {
    WideInteger(name, value, 0, kCountMax);
  }

  // Transfers an enumerator by its name.
  template <typename E>
  void Name(const char* name, E& value, absl::string_view (*name_of)(E),
            absl::StatusOr<E> (*parse)(absl::string_view)) {
    std::string text(name_of(value));
    Text(name, text);
    if (!is_reading() || !status_.ok()) return;
    absl::StatusOr<E> parsed = parse(text);
    if (parsed.ok()) value = *parsed;
    Check(parsed.status(), name);
  }

  // Transfers an object; `list` is the function that lists its fields.
  template <typename T, typename List>
  void Object(const char* name, T& value, List list) {
    if (!status_.ok()) return;
    JsonFields inner = Inner(name);
    list(inner, value);
    if (status_.ok()) status_ = inner.status_;
  }

  // Transfers a list of objects. REQUIRES: a reader gets empty `items`.
  template <typename T, typename List>
  void Objects(const char* name, std::vector<T>& items, List list) {
    const size_t count = BeginList(name, items.size());
    for (size_t i = 0; i < count && status_.ok(); ++i) {
      if (is_reading()) items.emplace_back();
      JsonFields item = Item(name, i);
      list(item, items[i]);
      status_ = item.status_;
    }
  }

  // Transfers field `name` by `transfer(value)`, or null for nothing.
  template <typename T, typename Transfer>
  void OrNull(const char* name, std::optional<T>& value, Transfer transfer) {
    if (IsNull(name, !value.has_value())) return;
    if (is_reading()) value.emplace();
    transfer(*value);
  }

  // Makes an error of `status` the mistake, unless there is one already.
  void Check(const absl::Status& status, absl::string_view name = "");

  // Adds text to the path in messages: the name of this object, escaped.
  void AppendToPath(absl::string_view text) { absl::StrAppend(&where_, text); }

  // Reading: each returns field `name`, or an empty value and a mistake.
  const nlohmann::json& ReadObject(const char* name);
  const nlohmann::json& ReadList(const char* name);

  // OK, or kInvalidArgument with the path of the field and its value.
  const absl::Status& status() const { return status_; }

 private:
  void WideInteger(const char* name, int64_t& value, int64_t min, int64_t max);
  // True if there is no value: in the input, or for the output.
  bool IsNull(const char* name, bool is_absent);
  // Return the fields of an object in this one, or of an item in a list.
  JsonFields Inner(const char* name);
  JsonFields Item(const char* name, size_t index);
  // Returns the number of items to transfer: those of the input, or `count`.
  size_t BeginList(const char* name, size_t count);
  // Returns the field if `is` holds for it, and otherwise null.
  const nlohmann::json* Find(const char* name,
                             bool (nlohmann::json::*is)() const noexcept,
                             const char* type);
  void Fail(absl::string_view message);

  const nlohmann::json* in_ = nullptr;     // Null: writes.
  nlohmann::ordered_json* out_ = nullptr;  // Null: reads.
  std::string where_;                      // Path of the object.
  absl::Status status_;                    // First mistake.
};

}  // namespace nereus
