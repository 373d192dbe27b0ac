#include "common/base/json_text.h"

#include "nlohmann/json.hpp"

namespace nereus {

std::string FormatJson(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace nereus
