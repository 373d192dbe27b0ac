#pragma once

#include <string>

#include "worker/public/client_report.h"

namespace nereus {

// Returns a client's report as one JSON object; docs/c_api.md lists its fields.
std::string ReportJson(const ClientReport& report);

}  // namespace nereus
