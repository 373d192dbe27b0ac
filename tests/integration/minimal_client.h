#ifndef NEREUS_TESTS_INTEGRATION_MINIMAL_CLIENT_H_
#define NEREUS_TESTS_INTEGRATION_MINIMAL_CLIENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nereus {

// A whole worker without a framework: fits y = 3 x + 1, each worker on points
// of its own, and returns {slope, intercept}. The README shows its source.
absl::StatusOr<std::vector<float>> FitLine(const std::string& coordinator,
                                           int64_t steps);

}  // namespace nereus

#endif  // NEREUS_TESTS_INTEGRATION_MINIMAL_CLIENT_H_
