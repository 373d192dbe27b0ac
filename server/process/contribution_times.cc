#include "server/process/contribution_times.h"

namespace nereus {

void ContributionTimes::OnFrame(const FrameHeader& header, absl::Time now) {
  if (header.kind != FrameKind::kContribution) return;
  const auto [entry, is_new] = open_.try_emplace({header.layer, header.chunk},
                                                 Open{header.round, now, now});
  if (is_new) return;
  Open& open = entry->second;
  if (header.round < open.round) return;
  if (header.round > open.round) {
    times_.Add(open.last - open.first);
    open = {header.round, now, now};
  }
  open.last = now;
}

}  // namespace nereus
