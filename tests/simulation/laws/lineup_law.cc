#include "tests/simulation/laws/lineup_law.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

// The law checks the job of each member when the member enters an epoch. Check
// goes through the job's distinct line-ups; there is one for each first step of
// a worker. CheckHosts derives the hosts a second time. CheckSeats and
// CheckCarriers ask the line-up for the place of each worker. Check then
// compares the texts of the hosts and carriers with those of the first member
// in the epoch. CheckNumbers checks the list of members, where the coordinator
// has replaced their claims by numbers.

namespace nereus {
namespace {

// Returns the number of units of a layer, see Job::SlotOf.
int64_t UnitCount(const Job& job, int64_t round, int layer) {
  switch (job.routes[layer].scheme) {
    case Scheme::kServer:
      return std::ssize(job.placement.layer_chunks(layer));
    case Scheme::kFactor:
      return job.LineupOf(round).workers();
    case Scheme::kRing:
    case Scheme::kDirect:
      break;
  }
  return FrameGrid(job.layers[layer].parameters).Count();
}

// Returns the contributors of a round by host, from the hosts of the job's
// workers. Hosts are in the order of their lowest ranks.
std::vector<std::vector<int32_t>> RanksByHost(const Job& job, int64_t round) {
  std::vector<std::vector<int32_t>> ranks;
  std::map<int32_t, size_t> index_of;
  for (const EpochWorker& each : job.workers) {
    if (each.first_step > round) continue;
    const size_t next = ranks.size();
    const size_t index =
        each.host < 0 ? next
                      : index_of.try_emplace(each.host, next).first->second;
    if (index == next) ranks.emplace_back();
    ranks[index].push_back(each.rank);
  }
  return ranks;
}

// Returns "0 2 | 1": the ranks of each host.
std::string Describe(const std::vector<std::vector<int32_t>>& ranks) {
  return absl::StrJoin(ranks, " | ",
                       [](std::string* out, const std::vector<int32_t>& host) {
                         absl::StrAppend(out, absl::StrJoin(host, " "));
                       });
}

std::string Describe(const Lineup& lineup) {
  std::vector<std::vector<int32_t>> ranks;
  for (int host = 0; host < lineup.hosts(); ++host) {
    ranks.emplace_back(lineup.at(host).begin(), lineup.at(host).end());
  }
  return Describe(ranks);
}

std::string Describe(const HostClaim& claim) {
  return absl::StrCat("node \"", claim.node, "\" machine \"", claim.machine,
                      "\"");
}

Place At(int64_t round) {
  Place place;
  place.round = round;
  return place;
}

}  // namespace

void LineupLaw::Observe(const ClusterEvent& event) {
  if (const auto* begun = std::get_if<EpochBegun>(&event)) {
    Check(*begun->job, "the coordinator");
  } else if (const auto* entered = std::get_if<EpochEntered>(&event)) {
    Check(*entered->start->job, absl::StrCat("process ", entered->process));
    CheckNumbers(*entered);
  }
}

// ---- Line-ups.

void LineupLaw::Check(const Job& job, const std::string& member) {
  ++checked_count_;
  std::set<int64_t> rounds;
  for (const EpochWorker& each : job.workers) rounds.insert(each.first_step);
  Derived derived = {member, {}};
  for (const int64_t round : rounds) {
    derived.lines.push_back(absl::StrCat("hosts of round ", round, ": ",
                                         Describe(job.LineupOf(round))));
    CheckHosts(job, round, member);
    CheckSeats(job, round, member);
    for (int layer = 0; layer < std::ssize(job.layers); ++layer) {
      derived.lines.push_back(CheckCarriers(job, round, layer, member));
    }
  }
  const auto [found, is_first] = first_.try_emplace(job.epoch, derived);
  const Derived& first = found->second;
  if (is_first || first.lines == derived.lines) return;
  const auto [here, there] =
      std::mismatch(derived.lines.begin(), derived.lines.end(),
                    first.lines.begin(), first.lines.end());
  Breach({}, absl::StrCat("epoch ", job.epoch, ": ", member, " derives ",
                          here == derived.lines.end() ? "nothing" : *here, "; ",
                          first.member, " derives ",
                          there == first.lines.end() ? "nothing" : *there));
}

void LineupLaw::CheckHosts(const Job& job, int64_t round,
                           const std::string& member) {
  const std::string derived = Describe(job.LineupOf(round));
  const std::string named = Describe(RanksByHost(job, round));
  if (derived == named) return;
  Breach(At(round), absl::StrCat(member, " has a line-up of the hosts ",
                                 derived, ", its job names ", named));
}

void LineupLaw::CheckSeats(const Job& job, int64_t round,
                           const std::string& member) {
  const Lineup& lineup = job.LineupOf(round);
  const auto expect = [&](int32_t rank, const char* what, int has, int wanted) {
    if (has == wanted) return;
    Breach(At(round), absl::StrCat(member, " gives worker ", rank, " the ",
                                   what, " ", has, ", it is to be ", wanted));
  };
  int seat = 0;
  for (int host = 0; host < lineup.hosts(); ++host) {
    int local = 0;
    for (const int32_t rank : lineup.at(host)) {
      expect(rank, "host", lineup.HostOf(rank), host);
      expect(rank, "local index", lineup.LocalOf(rank), local++);
      expect(rank, "seat", lineup.SeatOf(rank), seat++);
    }
  }
  if (seat != lineup.workers() || seat != job.ContributorsOf(round)) {
    Breach(At(round),
           absl::StrCat(member, " has ", seat, " seats, its line-up ",
                        lineup.workers(), " workers, and the round ",
                        job.ContributorsOf(round), " contributors"));
  }
  for (const EpochWorker& each : job.workers) {
    if (each.first_step <= round) continue;
    expect(each.rank, "seat", lineup.SeatOf(each.rank), -1);
  }
}

// The carrier finds out by its own index (LocalOf) that it is the carrier. Its
// mates ask for the carrier of their host (Carrier). Both must give the same
// worker.
std::string LineupLaw::CheckCarriers(const Job& job, int64_t round, int layer,
                                     const std::string& member) {
  const Lineup& lineup = job.LineupOf(round);
  std::string text =
      absl::StrCat("carriers of round ", round, ", layer ", layer, ":");
  for (int64_t unit = 0; unit < UnitCount(job, round, layer); ++unit) {
    absl::StrAppend(&text, unit == 0 ? "" : " |");
    for (int host = 0; host < lineup.hosts(); ++host) {
      const absl::Span<const int32_t> local = lineup.at(host);
      const int slot = job.SlotOf(layer, unit, static_cast<int>(local.size()));
      const int32_t carrier = lineup.Carrier(host, slot);
      absl::StrAppend(&text, " ", carrier);
      const auto carriers = absl::c_count_if(
          local, [&](int32_t rank) { return lineup.LocalOf(rank) == slot; });
      if (carriers == 1 && lineup.LocalOf(carrier) == slot) continue;
      Breach({layer, round},
             absl::StrCat(member, " derives ", carriers, " carriers of unit ",
                          unit, " on the host of worker ", local.front(),
                          ", and worker ", carrier, " as the carrier"));
    }
  }
  return text;
}

// ---- Numbers of hosts.

void LineupLaw::CheckNumbers(const EpochEntered& entered) {
  const EpochStart& start = *entered.start;
  for (size_t i = 0; i < start.epoch_members.size(); ++i) {
    const EpochMember& member = start.epoch_members[i];
    CheckNumber(member, entered.claims[i], entered.apart.contains(member.id),
                start.job->epoch);
    if (member.id.role != Role::kWorker) continue;
    const int position = start.job->PositionOf(member.id.rank);
    if (position < 0) continue;
    const int32_t host = start.job->workers[position].host;
    if (host == member.host) continue;
    Breach({}, absl::StrCat("worker ", member.id.rank, " is on host ", host,
                            " in the job, and on host ", member.host,
                            " among the members of process ", entered.process));
  }
}

void LineupLaw::CheckNumber(const EpochMember& member, const HostClaim& claim,
                            bool may_be_split, uint64_t epoch) {
  const bool is_known = !claim.machine.empty();
  const bool is_split = is_known && may_be_split && member.host == -1;
  if (is_split) {
    uint64_t& first = split_in_.try_emplace(member.id, epoch).first->second;
    first = std::min(first, epoch);
  }
  const auto split = split_in_.find(member.id);
  if (member.host >= 0 && split != split_in_.end() && split->second < epoch) {
    Breach({}, absl::StrCat(PeerName(member.id), " has host ", member.host,
                            " in epoch ", epoch, ", and was split in epoch ",
                            split->second));
  }
  if (is_known != (member.host >= 0) && !is_split) {
    Breach({}, absl::StrCat(PeerName(member.id), " claims ", Describe(claim),
                            ", and has host ", member.host));
  }
  if (!is_known || member.host < 0) return;
  const int32_t number = numbers_.try_emplace(claim, member.host).first->second;
  if (number != member.host) {
    Breach({}, absl::StrCat(PeerName(member.id), " claims ", Describe(claim),
                            ", which had host ", number, ", and has host ",
                            member.host));
  }
  const HostClaim& owner =
      claims_.try_emplace(member.host, claim).first->second;
  if (owner != claim) {
    Breach({}, absl::StrCat(PeerName(member.id), " claims ", Describe(claim),
                            ", and has host ", member.host, " of ",
                            Describe(owner)));
  }
}

}  // namespace nereus
