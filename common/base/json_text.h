#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace nereus {

// Returns `json` as indented text without a final newline. Replaces bytes that
// are not UTF-8, which file names can have: otherwise the library would throw
// an exception.
std::string FormatJson(const nlohmann::ordered_json& json);

}  // namespace nereus
