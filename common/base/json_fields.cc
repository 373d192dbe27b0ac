#include "common/base/json_fields.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Returns a short decimal that gives this float again: 0.1 and not
// 0.10000000149.
double ShortDecimal(float value) {
  for (int digits = 6; digits <= 9; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    const double decimal = std::strtod(text.c_str(), nullptr);
    if (static_cast<float>(decimal) == value) return decimal;
  }
  return value;
}

}  // namespace

// Leaves deep values out while the library parses. The library recurses when it
// later copies or writes a value, and a hostile text such as "[[[[..." must not
// exhaust the stack.
Json ParseJson(absl::string_view text) {
  constexpr int kDepthMax = 8;
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  return Json::parse(text.begin(), text.end(), is_shallow,
                     /*allow_exceptions=*/false);
}

JsonFields::JsonFields(const Json& object, std::string where)
    : in_(&object), where_(std::move(where)) {
  if (object.is_object()) return;
  Fail(object.is_discarded() ? "is not JSON" : "is not a JSON object");
}

void JsonFields::Flag(const char* name, bool& value) {
  if (!is_reading()) {
    (*out_)[name] = value;
  } else if (const Json* field = Find(name, &Json::is_boolean, "a boolean")) {
    value = field->get<bool>();
  }
}

void JsonFields::Text(const char* name, std::string& value) {
  if (!is_reading()) {
    (*out_)[name] = value;
  } else if (const Json* field = Find(name, &Json::is_string, "a string")) {
    value = field->get<std::string>();
  }
}

void JsonFields::Number(const char* name, double& value) {
  if (!is_reading()) {
    (*out_)[name] = value;
  } else if (const Json* field = Find(name, &Json::is_number, "a number")) {
    value = field->get<double>();
  }
}

// JSON has no NaN: the library writes null for it.
void JsonFields::NumberOrNan(const char* name, double& value) {
  if (!is_reading()) return Number(name, value);
  const auto field = in_->find(name);
  if (field == in_->end() || !field->is_null()) return Number(name, value);
  value = std::numeric_limits<double>::quiet_NaN();
}

void JsonFields::Float(const char* name, float& value) {
  double number = ShortDecimal(value);
  Number(name, number);
  if (std::abs(number) <= std::numeric_limits<float>::max()) {
    value = static_cast<float>(number);
  } else {
    Fail(absl::StrCat(name, " is ", number, ", not a float32"));
  }
}

void JsonFields::Seconds(const char* name, double& value) {
  Number(name, value);
  if (value < 0) Fail(absl::StrCat(name, " is ", value, ", below 0"));
}

void JsonFields::Seconds(const char* name, absl::Duration& value) {
  double seconds = absl::ToDoubleSeconds(value);
  Seconds(name, seconds);
  if (is_reading()) value = absl::Seconds(seconds);
}

// Refuses 1.5, which the library would cut to 1.
void JsonFields::WideInteger(const char* name, int64_t& value, int64_t min,
                             int64_t max) {
  if (!is_reading()) {
    (*out_)[name] = value;
    return;
  }
  const Json* field = Find(name, &Json::is_number_integer, "an integer");
  if (field == nullptr) return;
  // get<int64_t> would return a negative number for a number above the range of
  // int64_t, so this test comes before it.
  const bool is_huge = field->is_number_unsigned() &&
                       field->get<uint64_t>() > static_cast<uint64_t>(max);
  const int64_t number = is_huge ? max : field->get<int64_t>();
  if (!is_huge && number >= min && number <= max) {
    value = number;
  } else {
    Fail(absl::StrCat(name, " is ", field->dump(), ", not from ", min, " to ",
                      max));
  }
}

bool JsonFields::Has(const char* name) const { return in_->contains(name); }

bool JsonFields::IsNull(const char* name, bool is_absent) {
  if (!is_reading()) {
    if (is_absent) (*out_)[name] = nullptr;
    return is_absent;
  }
  const auto field = in_->find(name);
  return field != in_->end() && field->is_null();
}

JsonFields JsonFields::Inner(const char* name) {
  if (!is_reading()) return JsonFields((*out_)[name]);
  return JsonFields(ReadObject(name), absl::StrCat(where_, ": ", name));
}

JsonFields JsonFields::Item(const char* name, size_t index) {
  if (!is_reading()) {
    nlohmann::ordered_json& list = (*out_)[name];
    list.push_back(nlohmann::ordered_json::object());
    return JsonFields(list.back());
  }
  return JsonFields((*in_)[name][index],
                    absl::StrCat(where_, ": ", name, "[", index, "]"));
}

size_t JsonFields::BeginList(const char* name, size_t count) {
  if (is_reading()) return ReadList(name).size();
  (*out_)[name] = nlohmann::ordered_json::array();
  return count;
}

const Json& JsonFields::ReadList(const char* name) {
  static const Json& empty = *new Json(Json::array());
  const Json* field = Find(name, &Json::is_array, "a list");
  return field == nullptr ? empty : *field;
}

const Json& JsonFields::ReadObject(const char* name) {
  static const Json& empty = *new Json(Json::object());
  const Json* field = Find(name, &Json::is_object, "an object");
  return field == nullptr ? empty : *field;
}

const Json* JsonFields::Find(const char* name,
                             bool (Json::*is)() const noexcept,
                             const char* type) {
  if (!status_.ok()) return nullptr;
  const auto field = in_->find(name);
  if (field == in_->end()) {
    Fail(absl::StrCat(name, " is missing"));
  } else if (!((*field).*is)()) {
    const std::string number =
        field->is_number() ? absl::StrCat(" ", field->dump()) : "";
    Fail(
        absl::StrCat(name, " is ", field->type_name(), number, ", not ", type));
  } else {
    return &*field;
  }
  return nullptr;
}

void JsonFields::Check(const absl::Status& status, absl::string_view name) {
  if (status.ok()) return;
  Fail(absl::StrCat(name, name.empty() ? "" : ": ", status.message()));
}

// Later mistakes often follow from the first one, so the first one stays.
void JsonFields::Fail(absl::string_view message) {
  if (!is_reading() || !status_.ok()) return;
  status_ = InvalidArgumentError(where_, ": ", message);
}

}  // namespace nereus
