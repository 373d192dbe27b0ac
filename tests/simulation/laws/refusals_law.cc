#include "tests/simulation/laws/refusals_law.h"

#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Longest time from a question to its answer, without faults.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);

}  // namespace

void RefusalsLaw::Observe(const ClusterEvent& event) {
  if (const auto* admitted = std::get_if<Admitted>(&event)) {
    if (!admitted->stranger) return;
    Breach({}, absl::StrCat("process ", admitted->process,
                            " has no place in the job, and was admitted"));
  } else if (const auto* refused = std::get_if<FrameRefused>(&event)) {
    Breach({},
           absl::StrCat("process ", refused->to, " refused a frame of process ",
                        refused->from, ": ", refused->reason.message()));
  } else if (const auto* spoiled = std::get_if<FrameSpoiled>(&event)) {
    Breach({}, absl::StrCat("process ", spoiled->to,
                            " received a wrong payload of process ",
                            spoiled->from, ": ", spoiled->reason.message()));
  } else if (const auto* unreadable = std::get_if<Unreadable>(&event)) {
    Breach({}, absl::StrCat(unreadable->what, " cannot be read back: ",
                            unreadable->reason.message()));
  } else if (const auto* ended = std::get_if<MemberEnded>(&event)) {
    OnEnd(*ended);
  } else if (const auto* dead = std::get_if<CountedAsDead>(&event)) {
    OnDeath(*dead);
  }
}

void RefusalsLaw::OnDeath(const CountedAsDead& dead) {
  const bool is_for_silence =
      absl::StrContains(dead.reason, "sent nothing for") ||
      absl::StrContains(dead.reason, "sent none within") ||
      absl::StrContains(dead.reason, "has got no further");
  if (!is_for_silence || !dead.able_for.has_value() ||
      *dead.able_for < dead.lease + kAnswerTime) {
    return;
  }
  Breach({},
         absl::StrCat("process ", dead.process,
                      " counts as dead, and has been able to answer for ",
                      absl::FormatDuration(*dead.able_for), ": ", dead.reason));
}

void RefusalsLaw::OnEnd(const MemberEnded& ended) {
  if (ended.stranger && ended.outcome.message().empty()) {
    Breach({}, absl::StrCat("process ", ended.process,
                            " has no place in the job, and was not told why"));
  }
  // The coordinator drops one end of a link that breaks again and again. Its
  // own process may be the worse end, but the coordinator would end with it.
  if (ended.is_coordinators &&
      (absl::StrContains(ended.outcome.message(), "cannot keep a connection") ||
       absl::StrContains(ended.outcome.message(),
                         "have never been connected"))) {
    Breach({}, absl::StrCat("the coordinator ended its own process, ",
                            ended.process, ": ", ended.outcome.message()));
  }
}

}  // namespace nereus
