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

// Parses a text that another process has written. Leaves out values that are
// nested more than eight levels deep. For a text that is not JSON, returns a
// value for which a JsonFields notes the mistake "is not JSON".
nlohmann::json ParseJson(absl::string_view text);

// Fields of one JSON object, for reading or for writing. A type has one
// function that lists its fields. That function reads the fields if its
// JsonFields was constructed for reading, and else writes them.
//
//   void ListFields(JsonFields& fields, Point& point) {
//     fields.Count("x", point.x);
//     fields.Text("label", point.label);
//   }
//
// Reading: the input may be hostile. A field that is missing, has another type
// or is out of range is a mistake; unknown fields are ignored. status() keeps
// the first mistake. So a caller reads all fields and then checks status()
// once. If status() is not OK, the caller must not use the values.
//
// Writing: no value is checked, and status() stays OK.
class JsonFields {
 public:
  // Largest value that Count reads. No real count comes near it, and a sum of a
  // hundred counts does not overflow int64_t.
  static constexpr int64_t kCountMax = int64_t{1} << 56;

  // Reads `object`, which must outlive this. Messages begin with `where`, which
  // says what the object is.
  JsonFields(const nlohmann::json& object, std::string where);
  // Writes into `object`, which must outlive this, in the order of the calls.
  explicit JsonFields(nlohmann::ordered_json& object) : out_(&object) {}

  // True if this reads fields, false if it writes them.
  bool is_reading() const { return in_ != nullptr; }

  // Each function transfers field `name`: if is_reading(), it sets `value` from
  // the field; else it adds the field, with `value`, to the object.
  void Flag(const char* name, bool& value);
  void Text(const char* name, std::string& value);
  // Writes a number that is not finite as null, and refuses to read null.
  void Number(const char* name, double& value);
  // Writes the same as Number, and reads null as NaN.
  void NumberOrNan(const char* name, double& value);
  void Float(const char* name, float& value);     // Refuses |value| > FLT_MAX.
  void Seconds(const char* name, double& value);  // Refuses values below 0.
  void Seconds(const char* name, absl::Duration& value);

  // Transfers an integer. Reading refuses numbers below `min` or above `max`.
  // REQUIRES: T can hold `min` and `max`.
  template <typename T>
  void Integer(const char* name, T& value, int64_t min, int64_t max) {
    int64_t wide = value;
    WideInteger(name, wide, min, max);
    value = static_cast<T>(wide);
  }
  void Count(const char* name, int64_t& value) {
    WideInteger(name, value, 0, kCountMax);
  }

  // Transfers an enumerator as a text, its name. `parse` is the inverse of
  // `name_of`.
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

  // Transfers a list of objects that earlier versions did not write. If it is
  // missing, reading leaves `items` empty.
  template <typename T, typename List>
  void NewerObjects(const char* name, std::vector<T>& items, List list) {
    if (!is_reading() || Has(name)) Objects(name, items, list);
  }

  // Transfers a value that may be absent. JSON has null for an absent value;
  // `transfer(value)` transfers a value that is there.
  template <typename T, typename Transfer>
  void OrNull(const char* name, std::optional<T>& value, Transfer transfer) {
    if (IsNull(name, !value.has_value())) return;
    if (is_reading()) value.emplace();
    transfer(*value);
  }

  // If `status` is an error, notes it as the mistake, and puts `name` before
  // its message unless `name` is empty. Does nothing after an earlier mistake,
  // or if this writes.
  void Check(const absl::Status& status, absl::string_view name = "");

  // Adds `text`, such as the name of this object, to the path with which
  // messages begin. The caller must escape text from other processes.
  void AppendToPath(absl::string_view text) { absl::StrAppend(&where_, text); }

  // Return field `name`, which is an object or a list. If the field is missing
  // or has another type, they note a mistake and return an empty object or an
  // empty list. REQUIRES: is_reading().
  const nlohmann::json& ReadObject(const char* name);
  const nlohmann::json& ReadList(const char* name);

  // Returns OK, or kInvalidArgument with the path of the first wrong field.
  const absl::Status& status() const { return status_; }

 private:
  void WideInteger(const char* name, int64_t& value, int64_t min, int64_t max);
  // True if the object to read has field `name`. REQUIRES: is_reading().
  bool Has(const char* name) const;
  // Reading: true if field `name` is null. Writing: returns `is_absent`, and
  // writes null if it is true.
  bool IsNull(const char* name, bool is_absent);
  // Return the fields of the object that is field `name`, and of object `index`
  // in the list that is field `name`. Writing: they first add that object.
  JsonFields Inner(const char* name);
  JsonFields Item(const char* name, size_t index);
  // Reading: returns the number of items in the input. Writing: begins an empty
  // list and returns `count`.
  size_t BeginList(const char* name, size_t count);
  // Returns field `name` if `is`, a test of its type, is true for it. Otherwise
  // notes a mistake that says the field is not `type`, and returns null. After
  // an earlier mistake, returns null.
  const nlohmann::json* Find(const char* name,
                             bool (nlohmann::json::*is)() const noexcept,
                             const char* type);
  // Notes a mistake, unless there is an earlier one or this writes.
  void Fail(absl::string_view message);

  const nlohmann::json* in_ = nullptr;     // Object to read; null: this writes.
  nlohmann::ordered_json* out_ = nullptr;  // Object to write; null: this reads.
  std::string where_;                      // Path of the object, for messages.
  absl::Status status_;                    // First mistake.
};

}  // namespace nereus
