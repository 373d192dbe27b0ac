// Line-ups and slots. All line-ups of an epoch share one Order of all its
// workers. Ranks and first steps ascend together, so the contributors of a
// round are the workers with the lowest ranks: a line-up is the Order and the
// number of contributors. Line-ups with tables of their own would need memory
// in proportion to the square of the number of workers.

#include "common/protocol/lineup.h"

#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/plan/scheme.h"

namespace nereus {

// The loop takes the workers by rank. So it finds the worker with the lowest
// rank of a host first, and it finds the hosts in the order of their numbers.
Lineup::Lineup(absl::Span<const EpochWorker> workers)
    : workers_(static_cast<int>(workers.size())) {
  auto order = std::make_shared<Order>();
  // Numbers of hosts in this line-up, by EpochWorker::host.
  std::map<int32_t, int32_t> numbers;
  for (const EpochWorker& each : workers) {
    auto host = static_cast<int32_t>(order->hosts.size());
    if (each.host >= 0) {
      host = numbers.try_emplace(each.host, host).first->second;
    }
    if (host == std::ssize(order->hosts)) order->hosts.emplace_back();
    std::vector<int32_t>& ranks = order->hosts[host];
    order->places.push_back(
        {each.rank, host, static_cast<int32_t>(ranks.size())});
    ranks.push_back(each.rank);
  }
  hosts_ = static_cast<int>(order->hosts.size());
  order_ = std::move(order);
}

Lineup Lineup::Singles(int workers) {
  std::vector<EpochWorker> singles(workers);
  for (int rank = 0; rank < workers; ++rank) singles[rank].rank = rank;
  return Lineup(singles);
}

// The lowest ranks of the hosts ascend. So a binary search finds the first host
// that has none of these workers.
Lineup Lineup::First(int workers) const {
  Lineup first = *this;
  if (workers == workers_) return first;
  first.workers_ = workers;
  const auto later =
      absl::c_lower_bound(order_->hosts, order_->places[workers].rank,
                          [](const std::vector<int32_t>& ranks, int32_t rank) {
                            return ranks.front() < rank;
                          });
  first.hosts_ = static_cast<int>(later - order_->hosts.begin());
  return first;
}

absl::Span<const int32_t> Lineup::at(int host) const {
  const std::vector<int32_t>& all = order_->hosts[host];
  if (workers_ == std::ssize(order_->places)) return all;
  const auto later = absl::c_lower_bound(all, order_->places[workers_].rank);
  return absl::MakeConstSpan(all).first(later - all.begin());
}

const Lineup::Place* Lineup::Find(int rank) const {
  if (order_ == nullptr) return nullptr;
  const auto places = absl::MakeConstSpan(order_->places).first(workers_);
  const auto found = absl::c_lower_bound(
      places, rank,
      [](const Place& each, int wanted) { return each.rank < wanted; });
  return found == places.end() || found->rank != rank ? nullptr : &*found;
}

int Lineup::HostOf(int rank) const {
  const Place* const place = Find(rank);
  return place == nullptr ? -1 : place->host;
}

int Lineup::LocalOf(int rank) const {
  const Place* const place = Find(rank);
  return place == nullptr ? -1 : place->local;
}

int Lineup::SeatOf(int rank) const {
  const Place* const place = Find(rank);
  if (place == nullptr) return -1;
  int seat = place->local;
  for (int host = 0; host < place->host; ++host) {
    seat += static_cast<int>(at(host).size());
  }
  return seat;
}

Seating::Seating(absl::Span<const EpochWorker> workers,
                 absl::Span<const LayerSpec> layers,
                 const Placement& placement) {
  const Lineup all(workers);
  for (size_t i = 0; i < workers.size(); ++i) {
    // Workers with the same first step begin to contribute together.
    const int64_t first_step = workers[i].first_step;
    if (i + 1 < workers.size() && workers[i + 1].first_step == first_step) {
      continue;
    }
    first_steps_.push_back(first_step);
    lineups_.push_back(all.First(static_cast<int>(i) + 1));
  }
  if (all.hosts() == all.workers()) return;

  // The longest chunk gets slot 0, the next longest chunk slot 1, and so on.
  // Then the loads of two workers of a host differ by at most the length of the
  // longest chunk.
  const absl::Span<const Chunk> chunks = placement.chunks();
  const auto has_factors = [&](const Chunk& chunk) {
    return layers[chunk.layer].has_factors;
  };
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::c_sort(order, [&](size_t a, size_t b) {
    return std::tuple(has_factors(chunks[a]), -chunks[a].length, a) <
           std::tuple(has_factors(chunks[b]), -chunks[b].length, b);
  });
  slots_.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    slots_[i].resize(placement.layer_chunks(static_cast<int>(i)).size());
  }
  for (size_t slot = 0; slot < order.size(); ++slot) {
    const Chunk& chunk = chunks[order[slot]];
    slots_[chunk.layer][chunk.index] = static_cast<int64_t>(slot);
  }
}

const Lineup& Seating::LineupOf(int64_t round) const {
  const auto later = absl::c_upper_bound(first_steps_, round);
  return lineups_[later - first_steps_.begin()];
}

int64_t Seating::SlotOf(int layer, int64_t chunk) const {
  return slots_.empty() ? 0 : slots_[layer][chunk];
}

}  // namespace nereus
