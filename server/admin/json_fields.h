#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "nlohmann/json_fwd.hpp"

namespace nereus {

// Parses a text that another process has written. Levels below the eighth are
// left out, because the library recurses. A text that is no JSON gives a value
// that JsonFields refuses.
nlohmann::json ParseJson(absl::string_view text);

// Reads the fields of one JSON object. The first mistake stays in status(), and
// later reads return zero. So a caller reads all fields and then checks once.
class JsonFields {
 public:
  // Largest value of Count: no run comes near it, and sums do not overflow.
  static constexpr int64_t kCountMax = int64_t{1} << 56;

  // `where` names the object in messages. `object` must outlive this.
  JsonFields(const nlohmann::json& object, std::string where);

  // Each returns field `name`; it is a mistake if the field is missing, has
  // another type, or is out of range.
  int64_t Integer(const char* name, int64_t min, int64_t max);
  int64_t Count(const char* name) { return Integer(name, 0, kCountMax); }
  bool Flag(const char* name);
  double Number(const char* name);
  double Seconds(const char* name);  // At least 0.
  // At least 0, and at most kComputeTimeMax.
  absl::Duration Time(const char* name);
  std::string Text(const char* name);
  const nlohmann::json& List(const char* name);
  const nlohmann::json& Object(const char* name);

  // True if the field is missing or null.
  bool IsNull(const char* name) const;

  // Returns a number, or nothing for null.
  std::optional<double> NumberOrNull(const char* name);

  // OK, or kInvalidArgument with the object, the field and its value.
  const absl::Status& status() const { return status_; }

 private:
  // Returns the field if `is` holds for it, and otherwise null.
  const nlohmann::json* Find(const char* name,
                             bool (nlohmann::json::*is)() const noexcept,
                             const char* type);
  void Fail(absl::string_view message);

  const nlohmann::json& object_;
  const std::string where_;
  absl::Status status_;  // First mistake.
};

}  // namespace nereus
