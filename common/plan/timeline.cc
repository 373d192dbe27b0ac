#include "common/plan/timeline.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/plan/fusion.h"
#include "common/plan/link_bookings.h"

// The player behind Timeline. It needs no queue of events, because frames go in
// the order of urgency: a layer's transfers depend on those of more urgent
// layers only, which are the layers before it. So the player
//
//   1. plays the backward pass, last layer first: when does each gradient exist
//      (PlayBackward), and when does fusion let it go (LetGo)?
//   2. books the transfers of one layer after the other, first layer first, in
//      the times that the layers before have left (Send).
//   3. plays the forward pass (Play).
//
// Products of factors occupy the device, so they delay the gradients of the
// layers before. When they are made depends on when the factors arrive. So
// steps 1 and 2 are played twice if there are products: the first time without
// them.
//
// Read Play first, then the functions that it calls.

namespace nereus {
namespace {

// Arguments of an iteration, borrowed from the caller.
struct Scene {
  absl::Span<const LayerSpec> layers;  // Layers of the model.
  const Placement& placement;          // Shard of each chunk.
  const ClusterShape& cluster;         // Workers, servers and hosts.
  const TimeModel& model;              // Speed of links and device.
  absl::Span<const Route> routes;      // Route of each layer.
  int64_t fusion_bytes = kNoFusion;    // Fusion threshold.

  // Returns the seconds in which a worker multiplies a layer's factors. The
  // layer's backward pass makes two products from one worker's rows, so the
  // product of one worker's factors takes half of the time of that pass. The
  // host with the fewest workers takes longest.
  double ProductSeconds(size_t layer) const {
    return absl::ToDoubleSeconds(model.times[layer].backward) / 2 *
           ProductsOf(layers[layer], cluster.workers,
                      cluster.host_workers_least());
  }

  // True if a worker multiplies factors of others for the layer.
  bool Multiplies(size_t layer) const {
    return routes[layer].scheme == Scheme::kFactor && cluster.workers > 1;
  }

  // Returns the values of a layer's product that the workers of a host hand on
  // to each other: none unless they share the product.
  double ProductElements(size_t layer) const {
    const LayerSpec& spec = layers[layer];
    const int64_t local = cluster.host_workers_most();
    return SharesProduct(spec, cluster.workers, local)
               ? static_cast<double>(spec.m) * static_cast<double>(spec.n)
               : 0;
  }

  // Returns the values of both factors of `workers` workers.
  double FactorElements(size_t layer, int64_t workers) const {
    const LayerSpec& spec = layers[layer];
    return static_cast<double>(workers) * static_cast<double>(spec.rows) *
           static_cast<double>(spec.m + spec.n);
  }

  // Returns the shard of a layer's first chunk.
  size_t ShardOf(size_t layer) const {
    return static_cast<size_t>(
        placement.layer_chunks(static_cast<int>(layer)).front().shard);
  }

  // Returns the number of a layer's values that travel.
  double ElementsOf(size_t layer) const {
    return static_cast<double>(layers[layer].parameters) * model.share;
  }

  // Returns the number of a chunk's values that travel.
  double ElementsOf(const Chunk& chunk) const {
    return static_cast<double>(chunk.length) * model.share;
  }

  // Returns the seconds that the device computes: all layers, and products of
  // factors.
  double ComputeSeconds() const {
    double seconds = absl::ToDoubleSeconds(TotalTime(model.times));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (routes[layer].scheme == Scheme::kFactor) {
        seconds += ProductSeconds(layer);
      }
    }
    return seconds;
  }
};

// Iteration under way. Times are seconds from the iteration's start. An
// iteration starts with the forward pass. If programs wait in forward passes,
// it starts with the backward pass and ends with the next forward pass.
class Player {
 public:
  // `scene` is not owned and must outlive this.
  explicit Player(const Scene& scene)
      : scene_(scene),
        ready_(scene.layers.size(), 0.0),
        sent_(scene.layers.size(), 0.0),
        joins_(scene.layers.size(), false),
        done_(scene.layers.size(), 0.0),
        multiplied_(scene.layers.size(), false) {}

  // Plays the iteration and returns its seconds. Called once.
  double Play();

  // Returns the seconds of each layer from its gradient to its result.
  // REQUIRES: Play was called.
  std::vector<double> SyncSeconds() const {
    std::vector<double> seconds = done_;
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] -= ready_[i];
    return seconds;
  }

 private:
  // Plays the backward pass: sets ready_. With `multiplies`, the device also
  // makes the products of the factors that have arrived (done_) during the
  // pass: sets multiplied_, and done_ of these layers to the ends of their
  // products.
  void PlayBackward(bool multiplies);
  // Makes the product of a layer's factors. Returns its end.
  double Multiply(double now, size_t layer);
  // Sets sent_ and joins_ by fusion.
  void LetGo();
  // Notes that these layers are sent together, at `now`.
  void LetGo(double now, absl::Span<const size_t> layers);
  // Books all transfers of all layers: sets done_. Those of layers by factors
  // end when the factors have arrived.
  void SendAll();
  void Send(size_t layer);
  void SendChunk(const Chunk& chunk);
  void SendFactors(size_t layer);
  // Books an outcome of `elements` values that arrives at a host: the workers
  // hand on the first values while the last ones arrive. The layer, or its
  // chunk, is then done.
  void HandOn(const Arrival& there, size_t layer, double elements);
  // Plays the products that are not made in the backward pass, in the order in
  // which their factors arrive.
  void MultiplyRest();
  // Books what the workers of a host hand on to each other of a layer's
  // product, of which each has made a part by `now`. Returns when they have all
  // of it.
  double HandOnProduct(double now, size_t layer) {
    return links_
        ->WithinHost(now, scene_.ProductElements(layer), WireType::kFloat32)
        .last;
  }
  LinkBookings::Values Values(size_t layer, double elements) const {
    return {elements, scene_.routes[layer].wire, joins_[layer]};
  }

  const Scene& scene_;                 // Not owned.
  std::optional<LinkBookings> links_;  // Links of all hosts.
  double start_ = 0;                   // When the backward pass begins.
  double device_ = 0;                  // Time when the device is free.
  std::vector<double> ready_;  // Time when each layer's gradient exists.
  std::vector<double> sent_;   // Time when fusion lets each layer go.
  std::vector<bool> joins_;    // True if it shares the message of another one.
  // As if all layers went one after the other: time when the last message to
  // each shard begins to leave, and when all messages have left.
  std::vector<double> leaves_;
  double out_ = 0;
  // Time when each layer's round is done; see SendAll.
  std::vector<double> done_;
  // True if the product of the layer's factors is made, or if it has none.
  std::vector<bool> multiplied_;
};

double Player::Multiply(double now, size_t layer) {
  multiplied_[layer] = true;
  device_ = std::max(device_, now) + scene_.ProductSeconds(layer);
  return device_;
}

// A product is made as soon as the device is free after its factors have
// arrived.
void Player::PlayBackward(bool multiplies) {
  using Late = std::pair<double, size_t>;
  std::priority_queue<Late, std::vector<Late>, std::greater<Late>> factors;
  device_ = start_;
  for (size_t layer = scene_.layers.size(); layer-- > 0;) {
    while (!factors.empty() && factors.top().first <= device_) {
      const auto [there, product] = factors.top();
      factors.pop();
      done_[product] = Multiply(there, product);
    }
    device_ += absl::ToDoubleSeconds(scene_.model.times[layer].backward);
    ready_[layer] = device_;
    if (multiplies && scene_.Multiplies(layer)) {
      factors.push({std::max(done_[layer], device_), layer});
    }
  }
}

// Counts bytes as SendPlan does on a worker: each value of the gradient or of
// the factors once, however many receivers it has. After layer 0 the backward
// pass is over, so all layers that are held back go.
void Player::LetGo() {
  std::vector<size_t> held;
  double held_bytes = 0;
  leaves_.assign(scene_.cluster.servers, 0);
  out_ = 0;
  for (size_t layer = scene_.layers.size(); layer-- > 0;) {
    const Route& route = scene_.routes[layer];
    const double elements = route.scheme == Scheme::kFactor
                                ? scene_.FactorElements(layer, /*workers=*/1)
                                : scene_.ElementsOf(layer);
    held.push_back(layer);
    held_bytes += elements * static_cast<double>(WireBytes(route.wire));
    const bool holds =
        layer > 0 && (scene_.model.sequential ||
                      held_bytes < static_cast<double>(scene_.fusion_bytes));
    if (holds) continue;
    LetGo(ready_[layer], held);
    held.clear();
    held_bytes = 0;
  }
}

// With fusion, a layer joins the message of a layer before if that message has
// not begun to leave. Among workers, it joins until the message has left.
void Player::LetGo(double now, absl::Span<const size_t> layers) {
  for (const size_t layer : layers) {
    sent_[layer] = now;
    if (scene_.fusion_bytes == kNoFusion) continue;
    const Scheme scheme = scene_.routes[layer].scheme;
    const auto others = static_cast<double>(scene_.cluster.worker_hosts() - 1);
    double elements = scene_.ElementsOf(layer);
    double times = 1;
    if (scheme == Scheme::kRing) {
      elements /= others + 1;
      times = 2 * others;
    } else if (scheme == Scheme::kFactor) {
      elements = scene_.FactorElements(layer, /*workers=*/1);
      times = others;
    } else if (scheme == Scheme::kDirect) {
      times = others;
    }
    if (scheme == Scheme::kServer) {
      double& leaves = leaves_[scene_.ShardOf(layer)];
      joins_[layer] = now < leaves;
      if (!joins_[layer]) leaves = std::max(now, out_);
    } else {
      joins_[layer] = now < out_;
    }
    out_ = std::max(now, out_) + times * links_->Carry(Values(layer, elements));
  }
}

// Factors have connections of their own, which the network serves as well as
// those with more urgent frames. They are ready first, as a rule, because fully
// connected layers come last.
void Player::SendAll() {
  links_.emplace(scene_.cluster, scene_.model.link, scene_.model.memory_rate,
                 scene_.fusion_bytes != kNoFusion);
  LetGo();
  for (const bool by_factors : {true, false}) {
    for (size_t layer = 0; layer < scene_.layers.size(); ++layer) {
      const Scheme scheme = scene_.routes[layer].scheme;
      if ((scheme == Scheme::kFactor) == by_factors) Send(layer);
    }
  }
}

void Player::Send(size_t layer) {
  const Scheme scheme = scene_.routes[layer].scheme;
  done_[layer] = sent_[layer];
  // A single worker has no peer, so its layer is done at once. But several
  // workers on a single host must still multiply each other's factors.
  if (scene_.cluster.workers == 1 && scheme != Scheme::kServer) return;
  switch (scheme) {
    case Scheme::kServer:
      for (const Chunk& chunk :
           scene_.placement.layer_chunks(static_cast<int>(layer))) {
        SendChunk(chunk);
      }
      return;
    case Scheme::kFactor:
      return SendFactors(layer);
    case Scheme::kRing:
    case Scheme::kDirect: {
      const double elements = scene_.ElementsOf(layer);
      const Arrival summed =
          links_->WithinHost(sent_[layer], elements, WireType::kFloat32);
      const auto hosts = static_cast<double>(scene_.cluster.worker_hosts());
      Arrival there =
          scheme == Scheme::kRing
              ? links_->AroundRing(summed.first,
                                   Values(layer, elements / hosts))
              : links_->Directly(summed.first, Values(layer, elements));
      there.last = std::max(there.last, summed.last);
      return HandOn(there, layer, elements);
    }
  }
}

void Player::SendChunk(const Chunk& chunk) {
  const auto layer = static_cast<size_t>(chunk.layer);
  const auto shard = static_cast<size_t>(chunk.shard);
  const double elements = scene_.ElementsOf(chunk);
  const LinkBookings::Values values = Values(layer, elements);
  const Arrival summed =
      links_->WithinHost(sent_[layer], elements, WireType::kFloat32);
  const double there =
      std::max(summed.last, links_->ToShard(summed.first, shard, values));
  HandOn(links_->FromShard(there, shard, values), layer, elements);
}

void Player::SendFactors(size_t layer) {
  const LayerSpec& spec = scene_.layers[layer];
  const WireType wire = scene_.routes[layer].wire;
  const ClusterShape& cluster = scene_.cluster;
  const double now = sent_[layer];
  const Arrival shared = links_->WithinHost(
      now, scene_.FactorElements(layer, cluster.host_workers_most()), wire);
  // A host sends the matrices of each of its workers to every other host. The
  // host with the most workers sends at least as many matrices as any host
  // receives, so all transfers are over when its sends are.
  const int64_t others = cluster.worker_hosts() - 1;
  double there = now;
  if (others > 0) {
    const auto times =
        static_cast<double>(cluster.host_workers_most() * others);
    const auto rows = static_cast<double>(spec.rows);
    for (const int64_t side : {spec.m, spec.n}) {
      const double elements = rows * static_cast<double>(side);
      there = std::max(
          there, links_->AmongHosts(now, times, Values(layer, elements)).last);
    }
    there += links_->latency();
  }
  there = std::max(there, shared.last);
  const double elements = scene_.FactorElements(
      layer, cluster.workers - cluster.host_workers_most());
  done_[layer] = std::max(
      there, links_->WithinHost(there, elements, WireType::kFloat32).last);
}

void Player::HandOn(const Arrival& there, size_t layer, double elements) {
  const double seconds =
      links_->WithinHostSeconds(elements, WireType::kFloat32);
  const double begin = std::max(there.first, there.last - seconds);
  const double last =
      links_->WithinHost(begin, elements, WireType::kFloat32).last;
  done_[layer] = std::max({done_[layer], there.last, last});
}

void Player::MultiplyRest() {
  std::vector<std::pair<double, size_t>> rest;
  for (size_t layer = 0; layer < scene_.layers.size(); ++layer) {
    if (!multiplied_[layer]) rest.push_back({done_[layer], layer});
  }
  absl::c_sort(rest);
  for (const auto& [there, layer] : rest) {
    done_[layer] = HandOnProduct(Multiply(there, layer), layer);
  }
}

double Player::Play() {
  const TimeModel& model = scene_.model;
  const size_t layers = scene_.layers.size();
  if (!model.waits_in_forward) {
    for (const LayerTime& time : model.times) {
      start_ += absl::ToDoubleSeconds(time.forward);
    }
  }
  bool multiplies = false;
  for (size_t layer = 0; layer < layers; ++layer) {
    multiplied_[layer] = !scene_.Multiplies(layer);
    multiplies = multiplies || scene_.Multiplies(layer);
  }
  PlayBackward(/*multiplies=*/false);
  SendAll();
  if (multiplies) {
    PlayBackward(/*multiplies=*/true);
    const std::vector<double> products = done_;
    SendAll();
    for (size_t layer = 0; layer < layers; ++layer) {
      if (!scene_.Multiplies(layer) || !multiplied_[layer]) continue;
      done_[layer] =
          HandOnProduct(std::max(products[layer], done_[layer]), layer);
    }
  }
  if (!model.waits_in_forward) {
    MultiplyRest();
    return std::max(device_, *absl::c_max_element(done_));
  }
  // Products of factors that came in time may last longer than the backward
  // pass. Those of other factors are made when the forward pass needs them.
  for (size_t layer = 0; layer < layers; ++layer) {
    if (!multiplied_[layer]) {
      done_[layer] = Multiply(done_[layer], layer) +
                     links_->WithinHostSeconds(scene_.ProductElements(layer),
                                               WireType::kFloat32);
    }
    device_ = std::max(device_, done_[layer]) +
              absl::ToDoubleSeconds(model.times[layer].forward);
  }
  return device_;
}

}  // namespace

Timeline::Played Timeline::PlayLayers(absl::Span<const Route> routes,
                                      int64_t fusion_bytes) const {
  const Scene scene{layers_, placement_, cluster_,
                    model_,  routes,     fusion_bytes};
  Player player(scene);
  Played played;
  played.seconds = player.Play();
  played.compute_seconds = scene.ComputeSeconds();
  played.sync_seconds = player.SyncSeconds();
  return played;
}

}  // namespace nereus
