#include "common/plan/time_cost.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/plan/fusion_tuner.h"

namespace nereus {
namespace {

constexpr Scheme kSchemes[] = {Scheme::kServer, Scheme::kFactor, Scheme::kRing};

// A change that gains less is not worth a plan that is harder to explain.
constexpr double kGainMin = 1e-3;
constexpr int kPasses = 3;
// A search plays fewer timelines the longer each takes, since whoever searches
// has other things to do: of chunks that nodes send, at most so many, which
// takes some tenths of a second; and so many timelines in any case. Each of its
// phases has its share of them.
constexpr int64_t kSendsMax = 100'000'000;
constexpr int64_t kPlaysMin = 100;
constexpr int64_t kPhases = 5;
// Thresholds of fusion are tried that are so many times each other, and so many
// of them.
constexpr int64_t kFusionStep = 4;
constexpr int64_t kFusionPlays = 9;
// So many sizes of layers are tried as the limit between small and large.
constexpr size_t kLimitsMax = 16;

class Search {
 public:
  Search(absl::Span<const LayerSpec> layers, const Placement& placement,
         const ClusterShape& cluster, const TimeModel& model,
         const TimeChoices& among)
      : layers_(layers),
        cluster_(cluster),
        timeline_(layers, placement, cluster, model),
        among_(among),
        wire_(among.wire),
        fusion_(among.choose_fusion ? FusionTuner::kBytesFirst
                                    : among.fusion_bytes),
        phase_plays_(PlaysFor(placement, cluster) / kPhases),
        best_(Uniform(Scheme::kServer)),
        seconds_(Play(best_)) {}

  TimeChoice Run() {
    BeginPhase();
    TryAll();
    if (among_.choose_wire) {
      BeginPhase();
      wire_ = WireType::kBfloat16;
      TryAll();
    }
    BeginPhase();
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool improved = Improve();
      if (!TryFusions() && !improved) break;
    }
    if (among_.choose_wire) {
      BeginPhase();
      Widen();
    }
    BeginPhase();
    return {Choices(), fusion_};
  }

 private:
  std::vector<SchemeChoice> Choices() {
    std::vector<SchemeChoice> choices;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      std::string others;
      for (const Scheme scheme : kSchemes) {
        if (scheme == best_[layer].scheme || !Supports(layer, scheme)) continue;
        if (plays_left_ <= 0) break;
        std::vector<Route> other = best_;
        other[layer].scheme = scheme;
        absl::StrAppendFormat(&others, ", %.4g s with %s here", Play(other),
                              SchemeName(scheme));
      }
      choices.push_back(
          {best_[layer].scheme,
           absl::StrFormat("%.4g s an iteration%s", seconds_, others),
           best_[layer].wire});
    }
    return choices;
  }

  static int64_t PlaysFor(const Placement& placement,
                          const ClusterShape& cluster) {
    const int64_t nodes = std::max(cluster.workers, cluster.servers);
    const int64_t sends =
        nodes * static_cast<int64_t>(placement.chunks().size());
    return std::max(kPlaysMin, kSendsMax / sends);
  }
  void BeginPhase() { plays_left_ = phase_plays_; }
  double Play(absl::Span<const Route> routes) {
    --plays_left_;
    return timeline_.Play(routes, fusion_);
  }
  bool Supports(size_t layer, Scheme scheme) const {
    if (among_.forced.has_value()) {
      const bool can = SupportsScheme(layers_[layer], *among_.forced);
      return scheme == (can ? *among_.forced : Scheme::kServer);
    }
    return SupportsScheme(layers_[layer], scheme) &&
           (scheme != Scheme::kFactor || among_.may_use_factors);
  }
  Route RouteFor(size_t layer, Scheme scheme, Scheme otherwise) const {
    if (among_.forced.has_value()) {
      scheme =
          Supports(layer, *among_.forced) ? *among_.forced : Scheme::kServer;
      return {scheme, wire_};
    }
    return {Supports(layer, scheme) ? scheme : otherwise, wire_};
  }
  std::vector<Route> Uniform(Scheme scheme) const {
    return BySize(0, scheme, scheme);
  }
  // Layers of so many parameters and more go one way, all others another.
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
  std::vector<int64_t> Limits() const {
    std::vector<int64_t> sizes;
    for (const LayerSpec& layer : layers_) sizes.push_back(layer.parameters);
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    std::vector<int64_t> limits;
    const size_t step = sizes.size() / kLimitsMax + 1;
    for (size_t i = step; i < sizes.size(); i += step) {
      limits.push_back(sizes[i]);
    }
    return limits;
  }

  // float32 wherever that costs nothing to speak of, all together: half of the
  // layers at once, and where that costs something, half of that half.
  void Widen() {
    std::vector<size_t> order = BySizeDescending();
    std::reverse(order.begin(), order.end());
    WidenAll(order, seconds_ * (1 + kGainMin));
  }
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
      // The smaller ones first.
      WidenAll(layers.subspan(0, layers.size() / 2), most);
      WidenAll(layers.subspan(layers.size() / 2), most);
    }
  }

  std::vector<size_t> BySizeDescending() const {
    std::vector<size_t> order(layers_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return layers_[a].parameters > layers_[b].parameters;
    });
    return order;
  }

  bool Try(std::vector<Route> routes) {
    if (plays_left_ <= 0) return false;
    const double seconds = Play(routes);
    if (seconds >= seconds_ * (1 - kGainMin)) return false;
    best_ = std::move(routes);
    seconds_ = seconds;
    return true;
  }
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
  bool TryFusions() {
    if (!among_.choose_fusion) return false;
    plays_left_ -= kFusionPlays;
    const int64_t before = std::exchange(fusion_, BestFusion(timeline_, best_));
    seconds_ = Play(best_);
    return fusion_ != before;
  }
  // Layer by layer, the largest first.
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

  const absl::Span<const LayerSpec> layers_;
  const ClusterShape& cluster_;
  const Timeline timeline_;
  const TimeChoices among_;
  WireType wire_;
  int64_t fusion_;
  const int64_t phase_plays_;
  int64_t plays_left_ = 0;  // In this phase.
  std::vector<Route> best_;
  double seconds_;
};

}  // namespace

TimeChoice ChooseByTime(absl::Span<const LayerSpec> layers,
                        const Placement& placement, const ClusterShape& cluster,
                        const TimeModel& model, const TimeChoices& among) {
  return Search(layers, placement, cluster, model, among).Run();
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
