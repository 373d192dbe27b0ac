#include "tests/simulation/laws/backup_law.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

std::string Describe(const ChunkChecksums& checksums) {
  return absl::StrCat("parameters ", absl::Hex(checksums.parameters),
                      ", state ", absl::Hex(checksums.state));
}

}  // namespace

// Compares checksums only: WatchFrame has read the values at both servers.
void BackupLaw::Observe(const ClusterEvent& event) {
  if (const auto* has = std::get_if<BackupHas>(&event)) {
    if (has->primary_values == has->backup_values) return;
    Breach({.layer = has->layer, .round = has->round},
           absl::StrCat("chunk ", has->chunk, " in backup process ",
                        has->backup, " has checksums ",
                        Describe(has->backup_values), ", in primary process ",
                        has->primary, " ", Describe(has->primary_values)));
  } else if (const auto* shown = std::get_if<ResultShown>(&event)) {
    if (shown->backup_round > shown->round) return;
    Breach({shown->layer, shown->round, shown->rank},
           absl::StrCat("the worker has the result of round ", shown->round,
                        " of chunk ", shown->chunk, ", backup process ",
                        shown->backup, " has round ", shown->backup_round,
                        " open"));
  }
}

}  // namespace nereus
