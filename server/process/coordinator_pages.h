#pragma once

#include "common/metrics/process_pages.h"
#include "server/process/coordinator_service.h"

namespace nereus {

// Returns the pages of a coordinator beside its metrics:
//
//   /             the job on one page, for people
//   /script.js    the script of that page, and /style.css
//   /status.json  the JSON of `nereusctl status --json`
//
// `service` must outlive the pages.
ProcessPages::Pages CoordinatorPages(const CoordinatorService& service);

}  // namespace nereus
