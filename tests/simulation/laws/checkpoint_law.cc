#include "tests/simulation/laws/checkpoint_law.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "common/driver/wire_values.h"

namespace nereus {
namespace {

uint32_t Checksum(const Buffer& values) {
  return Crc32c(values.data(), static_cast<size_t>(values.bytes()));
}

std::string Describe(WireType wire, uint32_t checksum) {
  return absl::StrCat(absl::Hex(checksum), " as ", WireTypeName(wire));
}

}  // namespace

CheckpointLaw::CheckpointLaw(std::vector<LayerSpec> layers, WireType wire,
                             int state_arrays)
    : layers_(std::move(layers)), wire_(wire), state_arrays_(state_arrays) {}

void CheckpointLaw::Observe(const ClusterEvent& event) {
  if (const auto* done = std::get_if<RoundDone>(&event)) {
    if (done->mean.has_value() || done->place.job->partial()) return;
    OnParameters(done->place, done->parameters.checksum);
  } else if (const auto* update = std::get_if<ParametersUpdated>(&event)) {
    OnParameters(update->place, update->parameters.checksum);
  } else if (const auto* whole = std::get_if<CheckpointWhole>(&event)) {
    OnWhole(whole->round, whole->disk);
  } else if (const auto* changed = std::get_if<DiskChanged>(&event)) {
    OnDisk(changed->disk);
  } else if (const auto* rotted = std::get_if<CheckpointRotted>(&event)) {
    rotted_.insert(rotted->round);
  } else if (const auto* failed = std::get_if<RestoreFailed>(&event)) {
    if (rotted_.contains(failed->round) && absl::IsDataLoss(failed->reason)) {
      return;
    }
    // A server that reads for too long is left out. The job goes on, and needs
    // the checkpoint no more (seed 1906).
    if (failed->epoch < view().job().epoch) return;
    Breach({.round = failed->round}, absl::StrCat("process ", failed->process,
                                                  " cannot restore the round: ",
                                                  failed->reason.message()));
  } else if (const auto* epoch = std::get_if<EpochBegun>(&event)) {
    if (epoch->all_from_base) ForgetAfter(epoch->job->history.base_round);
  } else if (const auto* ended = std::get_if<JobEnded>(&event)) {
    OnEnd(*ended);
  }
}

void CheckpointLaw::OnParameters(const LayerPlace& place, uint32_t checksum) {
  const Job& job = *place.job;
  const int position = job.PositionOf(place.rank);
  if (position < 0) return;
  // First values need not be the result of one round. If all workers are
  // replaced, the new ones begin with the values of the servers, and some
  // chunks may be a round ahead.
  const bool is_result = place.round >= job.workers[position].first_step ||
                         place.round == job.history.base_round;
  if (is_result) {
    had_[{place.layer, place.round}].insert(
        {job.routes[place.layer].wire, checksum});
  }
  if (view().Counts(place.process)) Compare(place.layer, place.round);
}

void CheckpointLaw::OnWhole(int64_t round, SimulatedStorage* disk) {
  newest_whole_ = std::max(newest_whole_, round);
  rotted_.erase(round);
  const absl::Status read = ReadBack(round, disk);
  if (read.ok()) return;
  Breach(
      {.round = round},
      absl::StrCat("a whole checkpoint cannot be read back: ", read.message()));
}

void CheckpointLaw::OnDisk(SimulatedStorage* disk) {
  const auto list = ListCheckpoints(*disk);
  if (!list.ok()) {
    Breach({}, absl::StrCat("checkpoints cannot be listed: ",
                            list.status().message()));
    return;
  }
  for (const Manifest& manifest : list->complete) {
    if (!disk->torn(ManifestName(manifest.round))) continue;
    Breach({.round = manifest.round},
           "the manifest is torn, but its checkpoint counts as whole");
  }
  const int64_t newest =
      list->complete.empty() ? kInitialRound : list->complete.front().round;
  // A coordinator may die after it has written a manifest and before the law is
  // told of it.
  if (newest > newest_whole_) OnWhole(newest, disk);
  // The job has set the newest one aside.
  if (newest < newest_whole_ && rotted_.contains(newest_whole_)) {
    newest_whole_ = newest;
  }
  if (newest == newest_whole_) return;
  Breach({},
         absl::StrCat("the newest checkpoint is of round ", newest,
                      ", that of round ", newest_whole_, " was whole before"));
}

void CheckpointLaw::OnEnd(const JobEnded& ended) {
  if (ended.may_be_unsaved || ended.saved_round >= ended.last_step) return;
  Breach({}, absl::StrCat("the job ended after step ", ended.last_step,
                          ", its newest checkpoint is of round ",
                          ended.saved_round));
}

absl::Status CheckpointLaw::ReadBack(int64_t round, SimulatedStorage* disk) {
  Manifest manifest = NEREUS_TRY(ReadManifest(*disk, round));
  CheckpointReader reader =
      NEREUS_TRY(CheckpointReader::Open(disk, std::move(manifest)));
  NEREUS_TRY(reader.Verify());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const ChunkValues values = NEREUS_TRY(
        reader.ReadValues(layer, 0, layers_[i].parameters, state_arrays_));
    // Servers send values rounded to the wire type, so workers may have the
    // rounded ones.
    std::map<WireType, uint32_t>& checksums = saved_[{layer, round}];
    checksums.clear();
    checksums[WireType::kFloat32] = Checksum(values.parameters);
    if (wire_ != WireType::kFloat32) {
      RoundToWire(wire_, values.parameters);
      checksums[wire_] = Checksum(values.parameters);
    }
    Compare(layer, round);
  }
  return absl::OkStatus();
}

void CheckpointLaw::Compare(int layer, int64_t round) const {
  const auto saved = saved_.find({layer, round});
  const auto had = had_.find({layer, round});
  if (saved == saved_.end() || had == had_.end()) return;
  // If all workers with these values die, the other workers may do the round
  // again and get another result. The job can still go back to the checkpoint,
  // so the values of dead workers count too.
  const auto was_had = [&](const auto& sum) {
    // Values that workers own are not rounded, whatever the wire type is.
    return had->second.contains(sum) ||
           (sum.first == WireType::kFloat32 &&
            absl::c_any_of(had->second, [&](const auto& other) {
              return other.second == sum.second;
            }));
  };
  if (absl::c_any_of(saved->second, was_had)) return;
  const auto describe = [](std::string* text, const auto& sum) {
    absl::StrAppend(text, Describe(sum.first, sum.second));
  };
  Breach({.layer = layer, .round = round},
         absl::StrCat("the checkpoint has checksum ",
                      absl::StrJoin(saved->second, " or ", describe),
                      ", workers had ",
                      absl::StrJoin(had->second, " or ", describe)));
}

void CheckpointLaw::ForgetAfter(int64_t round) {
  const auto is_later = [&](const auto& sum) {
    return sum.first.second > round;
  };
  std::erase_if(saved_, is_later);
  std::erase_if(had_, is_later);
}

}  // namespace nereus
