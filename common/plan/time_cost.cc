#include "common/plan/time_cost.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_format.h"

namespace nereus {
namespace {

constexpr Scheme kSchemes[] = {Scheme::kServer, Scheme::kFactor, Scheme::kRing};

// A change that gains less is not worth a plan that is harder to explain.
constexpr double kGainMin = 1e-3;
constexpr int kPasses = 3;
// So many sizes of layers are tried as the limit between small and large.
constexpr size_t kLimitsMax = 16;

class Search {
 public:
  Search(absl::Span<const LayerSpec> layers, const Placement& placement,
         const ClusterShape& cluster, const TimeModel& model, WireType wire,
         bool may_use_factors)
      : layers_(layers),
        cluster_(cluster),
        timeline_(layers, placement, cluster, model),
        wire_(wire),
        may_use_factors_(may_use_factors),
        best_(Uniform(Scheme::kServer)),
        seconds_(timeline_.Play(best_)) {}

  void Run() {
    for (const Scheme scheme : kSchemes) Try(Uniform(scheme));
    TryPoseidons();
    for (const int64_t limit : Limits()) {
      for (const Scheme large : kSchemes) {
        for (const Scheme small : kSchemes) {
          if (large != small) Try(BySize(limit, large, small));
        }
      }
    }
    for (int pass = 0; pass < kPasses && Improve(); ++pass) {
    }
  }

  std::vector<SchemeChoice> Choices() const {
    std::vector<SchemeChoice> choices;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      std::string others;
      for (const Scheme scheme : kSchemes) {
        if (scheme == best_[layer].scheme || !Supports(layer, scheme)) continue;
        std::vector<Route> other = best_;
        other[layer].scheme = scheme;
        absl::StrAppendFormat(&others, "%s%.4g s with %s here",
                              others.empty() ? "" : ", ", timeline_.Play(other),
                              SchemeName(scheme));
      }
      choices.push_back(
          {best_[layer].scheme,
           absl::StrFormat("%.4g s an iteration, %s", seconds_, others)});
    }
    return choices;
  }

 private:
  bool Supports(size_t layer, Scheme scheme) const {
    return SupportsScheme(layers_[layer], scheme) &&
           (scheme != Scheme::kFactor || may_use_factors_);
  }
  Route RouteFor(size_t layer, Scheme scheme, Scheme otherwise) const {
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

  bool Try(std::vector<Route> routes) {
    const double seconds = timeline_.Play(routes);
    if (seconds >= seconds_ * (1 - kGainMin)) return false;
    best_ = std::move(routes);
    seconds_ = seconds;
    return true;
  }
  // Layer by layer, the largest first.
  bool Improve() {
    std::vector<size_t> order(layers_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return layers_[a].parameters > layers_[b].parameters;
    });
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
  const WireType wire_;
  const bool may_use_factors_;
  std::vector<Route> best_;
  double seconds_;
};

}  // namespace

std::vector<SchemeChoice> ChooseByTime(absl::Span<const LayerSpec> layers,
                                       const Placement& placement,
                                       const ClusterShape& cluster,
                                       const TimeModel& model, WireType wire,
                                       bool may_use_factors) {
  Search search(layers, placement, cluster, model, wire, may_use_factors);
  search.Run();
  return search.Choices();
}

}  // namespace nereus
