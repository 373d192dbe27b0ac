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

// Parses a text that another process has written. Values nested more than eight
// levels deep are left out, because the library recurses over levels. For a
// text that is not JSON, returns a value that JsonFields refuses.
nlohmann::json ParseJson(absl::string_view text);

// Fields of one JSON object, for reading or for writing. One function lists the
// fields of a type; the constructor decides whether it reads or writes them.
//
//   void ListFields(JsonFields& fields, Point& point) {
//     fields.Count("x", point.x);
//     fields.Text("label", point.label);
//   }
//
// A reader takes hostile input: a field that is missing, has another type or is
// out of range is a mistake, and unknown fields are ignored. The first mistake
// stays in status(). So a caller reads all fields and then checks status()
// once; after a mistake it must not use the values. A writer makes no mistakes:
// it checks nothing.
class JsonFields {
 public:
  // Largest value of Count. No run comes near it, and the sum of a hundred such
  // values does not overflow.
  static constexpr int64_t kCountMax = int64_t{1} << 56;

  // Reads `object`, which must outlive this. `where` names it in messages.
  JsonFields(const nlohmann::json& object, std::string where);
  // Writes into `object`, which must outlive this, in the order of the calls.
  explicit JsonFields(nlohmann::ordered_json& object) : out_(&object) {}

  bool is_reading() const { return in_ != nullptr; }

  // Each reads or writes field `name`.
  void Flag(const char* name, bool& value);
  void Text(const char* name, std::string& value);
  // Writes a number that is not finite as null, and refuses to read null.
  void Number(const char* name, double& value);
  // Writes the same as Number, and reads null as NaN.
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

  // Transfers a value that may be absent: by `transfer(value)`, or as null.
  template <typename T, typename Transfer>
  void OrNull(const char* name, std::optional<T>& value, Transfer transfer) {
    if (IsNull(name, !value.has_value())) return;
    if (is_reading()) value.emplace();
    transfer(*value);
  }

  // Makes an error of `status` the mistake, unless there is one already or this
  // writes.
  void Check(const absl::Status& status, absl::string_view name = "");

  // Adds `text`, such as the name of this object, to the path in messages. Text
  // from other processes must be escaped.
  void AppendToPath(absl::string_view text) { absl::StrAppend(&where_, text); }

  // Each returns field `name`. Without such a field, returns an empty value and
  // notes a mistake. REQUIRES: is_reading().
  const nlohmann::json& ReadObject(const char* name);
  const nlohmann::json& ReadList(const char* name);

  // OK, or kInvalidArgument with the path of the first wrong field.
  const absl::Status& status() const { return status_; }

 private:
  void WideInteger(const char* name, int64_t& value, int64_t min, int64_t max);
  // Reading: true if field `name` is null. Writing: returns `is_absent`, and
  // writes null if it is true.
  bool IsNull(const char* name, bool is_absent);
  // Return the fields of an object in this one, or of an item in a list.
  JsonFields Inner(const char* name);
  JsonFields Item(const char* name, size_t index);
  // Reading: returns the number of items in the input. Writing: begins an empty
  // list and returns `count`.
  size_t BeginList(const char* name, size_t count);
  // Returns the field if `is` holds for it; otherwise notes a mistake and
  // returns null. After a mistake, returns null.
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
