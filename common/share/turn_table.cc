#include "common/share/turn_table.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

using State = TurnSlot::State;

// True if the memory of client `other` is not there for client `own`: the other
// client is admitted, or has asked before this one.
bool TakesMemory(const TurnTable& table, int other, int own) {
  const TurnSlot& slot = table.slots[other];
  if (other == own || !slot.is_alive) return false;
  return slot.is_admitted || (slot.state == State::kAsks &&
                              std::tuple(slot.since, other) <
                                  std::tuple(table.slots[own].since, own));
}

// Clients that may have the turn now, the next one first.
std::vector<int> CandidatesIn(const TurnTable& table, absl::Time now) {
  std::vector<int> candidates;
  for (int i = 0; i < static_cast<int>(table.slots.size()); ++i) {
    const TurnSlot& slot = table.slots[i];
    if (slot.is_alive && slot.state == State::kAsks &&
        (slot.is_admitted || FitsMemory(table, i))) {
      candidates.push_back(i);
    }
  }
  const auto order = [&](int index) {
    const TurnSlot& slot = table.slots[index];
    const bool is_patient = now - slot.since < PatienceOf(table, index);
    // Clients without patience go by age, all others by key.
    return std::tuple(is_patient, is_patient ? absl::UnixEpoch() : slot.since,
                      slot.key, slot.job_id, slot.rank, index);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](int a, int b) { return order(a) < order(b); });
  return candidates;
}

std::string NameOf(const TurnSlot& slot) {
  return absl::StrCat("job ", slot.job, ", worker ", slot.rank);
}

}  // namespace

TurnDecision DecideTurn(const TurnTable& table, int own, absl::Time now) {
  if (table.holder >= 0 && table.holder != own) {
    const TurnSlot& holder = table.slots[table.holder];
    const absl::Time passed_at = holder.tried_at + holder.limit;
    if (holder.is_alive && now < passed_at) return {.until = passed_at};
  }
  const std::vector<int> candidates = CandidatesIn(table, now);
  const auto place = std::find(candidates.begin(), candidates.end(), own);
  // Without room in the memory, nothing but a change of the table helps.
  if (place == candidates.end()) return {};
  // Each client before this one has kTurnGrace to take the turn.
  absl::Time turn_at = table.free_since;
  for (auto before = candidates.begin(); before != place; ++before) {
    turn_at = std::max(turn_at, table.slots[*before].since) + kTurnGrace;
  }
  if (place == candidates.begin() || now >= turn_at) return {.takes = true};
  return {.until = turn_at};
}

double LeastKey(const TurnTable& table) {
  std::optional<double> least;
  for (const TurnSlot& slot : table.slots) {
    if (!slot.is_alive || !slot.has_asked) continue;
    least = std::min(slot.key, least.value_or(slot.key));
  }
  return least.value_or(0);
}

absl::Duration PatienceOf(const TurnTable& table, int own) {
  const TurnSlot& self = table.slots[own];
  absl::Duration patience;
  for (size_t i = 0; i < table.slots.size(); ++i) {
    const TurnSlot& other = table.slots[i];
    if (static_cast<int>(i) == own || !other.is_alive) continue;
    // The other's share of the device in the time of one own turn.
    patience += self.cost * (other.weight / self.weight);
  }
  return patience;
}

bool FitsMemory(const TurnTable& table, int own) {
  if (table.memory_bytes <= 0) return true;
  int64_t resident = table.slots[own].resident_bytes;
  int64_t turn = table.slots[own].turn_bytes;
  for (int i = 0; i < static_cast<int>(table.slots.size()); ++i) {
    if (!TakesMemory(table, i, own)) continue;
    const TurnSlot& other = table.slots[i];
    resident += other.resident_bytes;
    turn = std::max(turn, other.turn_bytes);
  }
  return resident + turn <= table.memory_bytes;
}

std::string DescribeTurnWait(const TurnTable& table, int own, absl::Time now) {
  const TurnSlot& self = table.slots[own];
  if (!self.is_admitted && !FitsMemory(table, own)) {
    std::vector<std::string> beside;
    for (int i = 0; i < static_cast<int>(table.slots.size()); ++i) {
      if (!TakesMemory(table, i, own)) continue;
      const TurnSlot& other = table.slots[i];
      beside.push_back(absl::StrCat(NameOf(other), " (keeps ",
                                    other.resident_bytes >> 20, " MiB, turn ",
                                    other.turn_bytes >> 20, " MiB)"));
    }
    return absl::StrCat("keeps ", self.resident_bytes >> 20, " MiB and needs ",
                        self.turn_bytes >> 20,
                        " MiB in its turn, which does not fit into the ",
                        table.memory_bytes >> 20, " MiB of the device beside ",
                        absl::StrJoin(beside, "; "));
  }
  if (table.holder < 0 || table.holder == own ||
      !table.slots[table.holder].is_alive) {
    return "the device is free";
  }
  const TurnSlot& holder = table.slots[table.holder];
  return absl::StrCat(NameOf(holder), " has the device for ",
                      absl::FormatDuration(absl::Trunc(now - holder.tried_at,
                                                       absl::Milliseconds(1))));
}

}  // namespace nereus
