#include "server/coordinator/replica_check.h"

#include "common/base/status.h"

namespace nereus {
namespace {

// Number of rounds whose first report is kept. Few are needed: workers are only
// a few steps apart, and checkpoints are many steps apart.
constexpr size_t kRoundsMax = 8;

}  // namespace

absl::Status ReplicaCheck::OnChecksums(const MemberRecord& member,
                                       const ReplicaChecksums& checksums,
                                       const Job& job) {
  if (!member.is_worker() || checksums.epoch != job.epoch) {
    return absl::OkStatus();
  }
  const std::string name = member.Name();
  const size_t layers = job.model().size();
  if (checksums.layers.size() != layers || checksums.round < 0 ||
      checksums.round > kStepMax) {
    return InvalidArgumentError(name, " reports ", checksums.layers.size(),
                                " checksums as of round ", checksums.round,
                                ", the model has ", layers, " layers");
  }
  const auto [place, is_first] = first_reports_.try_emplace(
      checksums.round, Report{name, checksums.layers});
  if (is_first) {
    if (first_reports_.size() > kRoundsMax) {
      first_reports_.erase(first_reports_.begin());
    }
    return absl::OkStatus();
  }
  const Report& first = place->second;
  for (size_t layer = 0; layer < layers; ++layer) {
    if (first.layers[layer] == checksums.layers[layer]) continue;
    return DataLossError(
        "replicas differ after step ", checksums.round,
        ": the parameters of "
        "layer ",
        job.layers[layer].name, " have checksum ",
        absl::Hex(first.layers[layer], absl::kZeroPad8), " on ", first.name,
        " and ", absl::Hex(checksums.layers[layer], absl::kZeroPad8), " on ",
        name,
        job.options.optimizer_place == OptimizerPlace::kWorker
            ? ". Do all workers run the same optimizer, and give its state to "
              "those that join (LayerBinding::state)?"
            : ". Does a worker change parameters that the servers update?");
  }
  return absl::OkStatus();
}

}  // namespace nereus
