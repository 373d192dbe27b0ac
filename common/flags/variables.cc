#include "common/flags/variables.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/logging.h"

extern char** environ;

namespace nereus {

namespace {

constexpr absl::string_view kHostSuffix = "_SERVICE_HOST";

// True if the variable is one of those of the Service with this prefix, such as
// NEREUS_DATA.
bool IsOfService(absl::string_view name, absl::string_view value,
                 absl::string_view prefix) {
  if (!absl::ConsumePrefix(&name, prefix)) return false;
  return absl::StartsWith(name, "_SERVICE_") ||
         absl::StartsWith(name, "_PORT_") ||
         (name == "_PORT" && absl::StrContains(value, "://"));
}

}  // namespace

void DropServiceVariables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, "NEREUS_")) continue;
    variables.push_back(absl::StrSplit(*entry, absl::MaxSplits('=', 1)));
  }
  for (const auto& [service, host] : variables) {
    absl::string_view prefix = service;
    if (!absl::ConsumeSuffix(&prefix, kHostSuffix)) continue;
    for (const auto& [name, value] : variables) {
      if (!IsOfService(name, value, prefix)) continue;
      NEREUS_LOG(Debug) << "ignores the variable " << name
                        << ", which Kubernetes has set for a Service";
      unsetenv(name.c_str());
    }
  }
}

}  // namespace nereus
