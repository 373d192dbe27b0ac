#include "server/admin/json_fields.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "nlohmann/json.hpp"

namespace nereus {

using Json = nlohmann::json;

// Deep values are left out while the library parses: it recurses when it
// handles values, and a hostile text such as "[[[[..." must not exhaust the
// stack.
Json ParseJson(absl::string_view text) {
  constexpr int kDepthMax = 8;
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  return Json::parse(text.begin(), text.end(), is_shallow,
                     /*allow_exceptions=*/false);
}

JsonFields::JsonFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) Fail("is not a JSON object");
}

// Accepts integers alone: the library would cut 1.5 to 1.
int64_t JsonFields::Integer(const char* name, int64_t min, int64_t max) {
  const Json* field = Find(name, &Json::is_number_integer, "an integer");
  if (field == nullptr) return 0;
  // Above the range of int64_t, get<int64_t> would wrap to a negative number.
  const bool is_huge = field->is_number_unsigned() &&
                       field->get<uint64_t>() > static_cast<uint64_t>(max);
  const int64_t value = is_huge ? max : field->get<int64_t>();
  if (!is_huge && value >= min && value <= max) return value;
  Fail(absl::StrCat(name, " is ", field->dump(), ", not from ", min, " to ",
                    max));
  return 0;
}

bool JsonFields::Flag(const char* name) {
  const Json* field = Find(name, &Json::is_boolean, "a boolean");
  return field != nullptr && field->get<bool>();
}

double JsonFields::Number(const char* name) {
  const Json* field = Find(name, &Json::is_number, "a number");
  return field == nullptr ? 0 : field->get<double>();
}

double JsonFields::Seconds(const char* name) {
  const double value = Number(name);
  if (value < 0) Fail(absl::StrCat(name, " is ", value, ", below 0"));
  return value;
}

// A time above the limit counts as the limit: TimeModel takes no longer times.
absl::Duration JsonFields::Time(const char* name) {
  return std::min(absl::Seconds(Seconds(name)), kComputeTimeMax);
}

std::string JsonFields::Text(const char* name) {
  const Json* field = Find(name, &Json::is_string, "a string");
  return field == nullptr ? "" : field->get<std::string>();
}

// A missing list is an empty list, so that callers may go over it before they
// look at status().
const Json& JsonFields::List(const char* name) {
  static const Json& empty = *new Json(Json::array());
  const Json* field = Find(name, &Json::is_array, "a list");
  return field == nullptr ? empty : *field;
}

const Json& JsonFields::Object(const char* name) {
  static const Json& empty = *new Json(Json::object());
  const Json* field = Find(name, &Json::is_object, "an object");
  return field == nullptr ? empty : *field;
}

bool JsonFields::IsNull(const char* name) const {
  const auto field = object_.find(name);
  return field == object_.end() || field->is_null();
}

// JSON has no NaN: a writer puts null where a number is not known.
std::optional<double> JsonFields::NumberOrNull(const char* name) {
  if (object_.contains(name) && IsNull(name)) return std::nullopt;
  return Number(name);
}

const Json* JsonFields::Find(const char* name,
                             bool (Json::*is)() const noexcept,
                             const char* type) {
  if (!status_.ok()) return nullptr;
  const auto field = object_.find(name);
  if (field == object_.end()) {
    Fail(absl::StrCat(name, " is missing"));
  } else if (!((*field).*is)()) {
    Fail(absl::StrCat(name, " is ", field->type_name(), ", not ", type));
  } else {
    return &*field;
  }
  return nullptr;
}

// Later mistakes often follow from the first one, so the first one stays.
void JsonFields::Fail(absl::string_view message) {
  if (!status_.ok()) return;
  status_ = InvalidArgumentError(where_, ": ", message);
}

}  // namespace nereus
