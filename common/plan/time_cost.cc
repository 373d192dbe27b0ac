#include "common/plan/time_cost.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/fusion_tuner.h"
#include "common/plan/link_bookings.h"

// The search behind ChooseByTime. Read Search::Run first: it lists the phases.
// TryAll and Improve propose routes to Try. Try plays a timeline: it predicts
// the iteration with these routes, and keeps them if the iteration is shorter
// than the best one by kGainMin. Every phase may play a limited number of
// timelines (BeginPhase). After that it stops, and the best routes so far stay:
// otherwise a thousand layers on a thousand hosts would take too long.
//
// Wire types: with choose_wire, TryAll tries its plans in the wire type of the
// rules and then in bf16. Improve keeps each layer's wire type. Then Widen
// changes layers from bf16 to fp32 where that costs no noticeable time.

namespace nereus {
namespace {

// Least relative gain for which the search keeps a change: a smaller gain is
// not worth a plan that is harder to explain.
constexpr double kGainMin = 1e-3;
// Largest number of passes of improvement over all layers.
constexpr int kPasses = 3;
// Bounds of a search. The cost of a timeline grows with its sends: hosts times
// chunks. All timelines of a search together have at most kSendsMax sends,
// which take some tenths of a second; but kPlaysMin timelines are allowed in
// any case. The phases have equal shares of the timelines. Only TryFusions may
// exceed the share of its phase, by a few timelines.
constexpr int64_t kSendsMax = 100'000'000;
constexpr int64_t kPlaysMin = 100;
constexpr int64_t kPhases = 5;
// Ratio of neighbouring fusion thresholds that BestFusion tries, and the number
// of timelines that it plays.
constexpr int64_t kFusionStep = 4;
constexpr int64_t kFusionPlays = 9;
// Largest number of parameters of a layer that the search sends directly. Each
// host adds up the gradients of all hosts, which a timeline does not count:
// larger layers took as long as around a ring, or longer.
constexpr int64_t kDirectMax = 16384;
// Largest number of limits between small and large layers that TryAll tries.
constexpr size_t kLimitsMax = 16;

// Returns milliseconds with three digits.
std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return ms < 100 ? absl::StrFormat("%.3g", ms) : absl::StrFormat("%.0f", ms);
}

// Returns the way of a scheme in reports: "by servers".
absl::string_view SchemeWay(Scheme scheme) {
  switch (scheme) {
    case Scheme::kServer:
      return "by servers";
    case Scheme::kFactor:
      return "by factors";
    case Scheme::kRing:
      return "by ring";
    case Scheme::kDirect:
      return "directly";
  }
  return "unknown";
}

// Search for the routes of one plan. Lives as long as one call of ChooseByTime.
class Search {
 public:
  Search(absl::Span<const LayerSpec> layers, const Placement& placement,
         const ClusterShape& cluster, const TimeModel& model,
         const PlanRules& rules)
      : layers_(layers),
        cluster_(cluster),
        timeline_(layers, placement, cluster, model),
        rules_(rules),
        wire_(rules.wire),
        fusion_(rules.choose_fusion ? FusionTuner::kBytesFirst
                                    : rules.fusion_bytes),
        phase_plays_(PlaysFor(placement, cluster) / kPhases),
        best_(Uniform(Scheme::kServer)),
        seconds_(Play(best_)) {}

  // Runs the phases in order.
  PlanChoice Run() {
    BeginPhase();
    TryAll();
    if (rules_.choose_wire) {
      BeginPhase();
      wire_ = WireType::kBfloat16;
      TryAll();
    }
    BeginPhase();
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool improved = Improve();
      if (!TryFusions() && !improved) break;
    }
    if (rules_.choose_wire) {
      BeginPhase();
      Widen();
    }
    BeginPhase();
    return {Choices(), fusion_};
  }

 private:
  // Returns the best routes. The reason for each route names the time of an
  // iteration, and the times that the iteration would take if the layer used
  // other schemes. If the phase has too few timelines, the reasons of the last
  // layers lack the times for other schemes.
  std::vector<SchemeChoice> Choices() {
    std::vector<SchemeChoice> choices;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      std::string others;
      for (const Scheme scheme : kSchemes) {
        if (scheme == best_[layer].scheme || !Supports(layer, scheme)) continue;
        if (plays_left_ <= 0) break;
        std::vector<Route> other = best_;
        other[layer].scheme = scheme;
        absl::StrAppend(&others, others.empty() ? "; " : ", ",
                        SchemeWay(scheme), " ", Milliseconds(Play(other)));
      }
      choices.push_back(
          {best_[layer].scheme,
           absl::StrCat(Milliseconds(seconds_), " ms an iteration", others),
           best_[layer].wire});
    }
    return choices;
  }

  // Returns the number of timelines that the search may play.
  static int64_t PlaysFor(const Placement& placement,
                          const ClusterShape& cluster) {
    const int64_t hosts =
        std::min(std::max(cluster.worker_hosts(), cluster.servers),
                 LinkBookings::kHostsPlayed);
    const int64_t sends = hosts * std::ssize(placement.chunks());
    return std::max(kPlaysMin, kSendsMax / sends);
  }
  // Gives the next phase its share of timelines.
  void BeginPhase() { plays_left_ = phase_plays_; }
  // Returns the seconds of an iteration with `routes`. Uses up one timeline of
  // the phase.
  double Play(absl::Span<const Route> routes) {
    --plays_left_;
    return timeline_.Play(routes, fusion_);
  }
  // True if the layer supports `scheme` and the rules allow it.
  bool Supports(size_t layer, Scheme scheme) const {
    if (rules_.forced.has_value()) {
      const bool can = SupportsScheme(layers_[layer], *rules_.forced);
      return scheme == (can ? *rules_.forced : Scheme::kServer);
    }
    if (scheme == Scheme::kDirect && layers_[layer].parameters > kDirectMax) {
      return false;
    }
    return SupportsScheme(layers_[layer], scheme) &&
           (scheme != Scheme::kFactor || rules_.no_factors.empty());
  }
  // Returns a route with `scheme` if the layer supports it, else with
  // `otherwise`. If a scheme is forced, returns a route with the forced scheme
  // where the layer supports it, else with the servers.
  Route RouteFor(size_t layer, Scheme scheme, Scheme otherwise) const {
    if (rules_.forced.has_value()) {
      scheme =
          Supports(layer, *rules_.forced) ? *rules_.forced : Scheme::kServer;
      return {scheme, wire_};
    }
    for (const Scheme each : {scheme, otherwise}) {
      if (Supports(layer, each)) return {each, wire_};
    }
    return {Scheme::kServer, wire_};
  }
  // Returns routes with `scheme` for all layers that support it; the other
  // layers use the servers.
  std::vector<Route> Uniform(Scheme scheme) const {
    return BySize(0, scheme, scheme);
  }
  // Returns routes with scheme `large` for layers of at least `limit`
  // parameters, and with scheme `small` for smaller layers. A large layer that
  // does not support `large` uses `small`. A layer that supports neither uses
  // the servers.
  std::vector<Route> BySize(int64_t limit, Scheme large, Scheme small) const {
    std::vector<Route> routes;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const bool is_large = layers_[layer].parameters >= limit;
      const Scheme otherwise =
          is_large && small != Scheme::kFactor ? small : Scheme::kServer;
      routes.push_back(RouteFor(layer, is_large ? large : small, otherwise));
    }
    return routes;
  }
  // Tries Poseidon's choice by bytes twice. The layers that do not go by
  // factors use the servers in the first plan, and rings in the second.
  void TryPoseidons() {
    for (const Scheme others : {Scheme::kServer, Scheme::kRing}) {
      std::vector<Route> routes = Uniform(others);
      for (size_t layer = 0; layer < layers_.size(); ++layer) {
        if (Supports(layer, Scheme::kFactor) &&
            FactorsMoveNoMore(layers_[layer], cluster_)) {
          routes[layer].scheme = Scheme::kFactor;
        }
      }
      Try(std::move(routes));
    }
  }
  // Returns up to kLimitsMax different sizes of layers, ascending, spread
  // evenly over all sizes that layers have.
  std::vector<int64_t> Limits() const {
    std::vector<int64_t> sizes;
    for (const LayerSpec& layer : layers_) sizes.push_back(layer.parameters);
    absl::c_sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    std::vector<int64_t> limits;
    const size_t step = sizes.size() / kLimitsMax + 1;
    for (size_t i = step; i < sizes.size(); i += step) {
      limits.push_back(sizes[i]);
    }
    return limits;
  }

  // Changes layers from bf16 back to fp32, smaller layers first, if the
  // iteration does not become noticeably longer: bf16 loses precision, so it
  // must save time.
  void Widen() {
    std::vector<size_t> order = BySizeDescending();
    absl::c_reverse(order);
    WidenAll(order, seconds_ * (1 + kGainMin));
  }
  // Changes all of `layers` to fp32 if the iteration then takes at most `most`
  // seconds; else tries each half of them. Halving needs fewer timelines than a
  // trial of each layer.
  void WidenAll(absl::Span<const size_t> layers, double most) {
    if (layers.empty() || plays_left_ <= 0) return;
    std::vector<Route> routes = best_;
    for (const size_t layer : layers) routes[layer].wire = WireType::kFloat32;
    if (routes == best_) return;
    const double seconds = Play(routes);
    if (seconds <= most) {
      best_ = std::move(routes);
      seconds_ = seconds;
    } else if (layers.size() > 1) {
      // The smaller layers first.
      WidenAll(layers.subspan(0, layers.size() / 2), most);
      WidenAll(layers.subspan(layers.size() / 2), most);
    }
  }

  // Returns the layers' indices, largest layer first.
  std::vector<size_t> BySizeDescending() const {
    std::vector<size_t> order(layers_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    absl::c_stable_sort(order, [&](size_t a, size_t b) {
      return layers_[a].parameters > layers_[b].parameters;
    });
    return order;
  }

  // Keeps `routes` if their iteration is shorter than the best one by kGainMin,
  // and returns true. Otherwise, or if the phase has no timelines left, returns
  // false.
  bool Try(std::vector<Route> routes) {
    if (plays_left_ <= 0) return false;
    const double seconds = Play(routes);
    if (seconds >= seconds_ * (1 - kGainMin)) return false;
    best_ = std::move(routes);
    seconds_ = seconds;
    return true;
  }
  // Tries whole plans, which differ in many layers at once. Improve, which
  // changes one layer at a time, does not reach a good plan if each change
  // alone makes the iteration longer.
  void TryAll() {
    for (const Scheme scheme : kSchemes) Try(Uniform(scheme));
    TryPoseidons();
    for (const int64_t limit : Limits()) {
      for (const Scheme large : kSchemes) {
        for (const Scheme small : kSchemes) {
          if (large != small) Try(BySize(limit, large, small));
        }
      }
    }
  }
  // Chooses the fusion threshold anew for the best routes. Returns true if the
  // threshold changed.
  bool TryFusions() {
    if (!rules_.choose_fusion) return false;
    plays_left_ -= kFusionPlays;
    const int64_t before = std::exchange(fusion_, BestFusion(timeline_, best_));
    seconds_ = Play(best_);
    return fusion_ != before;
  }
  // Tries the other schemes for one layer after the other. Begins with the
  // largest layer, which has most to gain. Returns true if it kept a change.
  bool Improve() {
    const std::vector<size_t> order = BySizeDescending();
    bool improved = false;
    for (const size_t layer : order) {
      for (const Scheme scheme : kSchemes) {
        if (scheme == best_[layer].scheme || !Supports(layer, scheme)) continue;
        std::vector<Route> routes = best_;
        routes[layer].scheme = scheme;
        improved = Try(std::move(routes)) || improved;
      }
    }
    return improved;
  }

  const absl::Span<const LayerSpec> layers_;  // Layers of the model.
  const ClusterShape& cluster_;               // Workers, servers and hosts.
  const Timeline timeline_;                   // Judge of all candidates.
  // Rules that say what the search may choose.
  const PlanRules& rules_;
  WireType wire_;              // Wire type of new candidates.
  int64_t fusion_;             // Fusion threshold so far.
  const int64_t phase_plays_;  // Timelines that each phase may play.
  int64_t plays_left_ = 0;     // Timelines left in this phase.
  std::vector<Route> best_;    // Best routes so far.
  double seconds_;             // Seconds of an iteration with them.
};

}  // namespace

PlanChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const PlanRules& rules) {
  return Search(layers, placement, cluster, model, rules).Run();
}

int64_t BestFusion(const Timeline& timeline, absl::Span<const Route> routes) {
  int64_t best = FusionTuner::kBytesFirst;
  double seconds = timeline.Play(routes, best);
  const auto consider = [&](int64_t bytes) {
    if (bytes < FusionTuner::kBytesMin || bytes > FusionTuner::kBytesMax) {
      return;
    }
    const double with = timeline.Play(routes, bytes);
    if (with >= seconds * (1 - kGainMin)) return;
    best = bytes;
    seconds = with;
  };
  for (int64_t times = kFusionStep; times <= FusionTuner::kBytesMax;
       times *= kFusionStep) {
    consider(FusionTuner::kBytesFirst / times);
    consider(FusionTuner::kBytesFirst * times);
  }
  return best;
}

}  // namespace nereus
