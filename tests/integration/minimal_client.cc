#include "tests/integration/minimal_client.h"

#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "worker/public/client.h"

namespace nereus {

absl::StatusOr<std::vector<float>> FitLine(const std::string& coordinator,
                                           int64_t steps) {
  std::vector<float> line = {0.0f, 0.0f};  // y = line[0] * x + line[1]
  std::vector<float> gradient(2);
  ClientOptions options;
  options.coordinator_address = coordinator;
  const LayerSpec spec = {"line", LayerKind::kVector, 1, 2, 2, 1};
  NEREUS_ASSIGN_OR_RETURN(
      auto client, Client::Connect(options, {{spec, absl::MakeSpan(line)}}));
  for (;;) {
    NEREUS_ASSIGN_OR_RETURN(const StepInfo step, client->BeginStep());
    if (step.step == steps) break;
    const float x =
        static_cast<float>((step.contributions_before + step.position) % 5);
    const float error = line[0] * x + line[1] - (3 * x + 1);
    gradient = {error * x, error};
    NEREUS_RETURN_IF_ERROR(
        client->Push(0, step.step, absl::MakeSpan(gradient)));
    NEREUS_RETURN_IF_ERROR(client->Wait(0, step.step));
  }
  NEREUS_RETURN_IF_ERROR(client->Leave());
  return line;
}

}  // namespace nereus
