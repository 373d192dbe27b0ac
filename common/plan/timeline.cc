#include "common/plan/timeline.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/plan/fusion.h"
#include "common/plan/link_bookings.h"

// The player behind Timeline: one iteration as a queue of events.
//
//   kBackward -> kReady -> kSummed --server--> kResult --------------> kOutcome
//    layer L-1   gradient          --ring----------------------------> kOutcome
//    ... layer 0 exists -> (Send)  --factor--> kFactors -> kProduct -> kOutcome
//
// When the backward pass of a layer ends, that of the layer before it begins.
// Ready collects layers until fusion lets them go. Send books the transfers of
// a layer on all links at once (LinkBookings), and adds an event for the time
// at which they have arrived. The workers of a host add up their gradients
// before, and hand the outcome on to each other at the end. With decoupled
// rounds, the second half of each round is not an event: Request plays all
// second halves, in forward order, after the whole backward pass.
//
// Read Play, then Take and the functions that it calls, in the order of the
// diagram.

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
// iteration starts with the forward pass. With decoupled rounds it starts with
// the backward pass and ends with the next forward pass, because workers
// request results during that pass.
class Player {
 public:
  // `scene` is not owned and must outlive this.
  explicit Player(const Scene& scene)
      : scene_(scene),
        links_(scene.cluster, scene.model.link, scene.model.memory_rate,
               scene.fusion_bytes != kNoFusion),
        done_(scene.layers.size(), 0.0),
        ready_(scene.layers.size(), 0.0),
        ring_reduced_(scene.layers.size(), 0.0),
        is_late_(scene.layers.size(), false) {}

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
  // Kinds of events. kBackward: the backward pass of a layer may begin. kReady:
  // the gradient of a layer exists. kSummed: a host has the first values of the
  // sum of its workers' gradients. kResult: all contributions to a chunk are at
  // its shard. kFactors: the host has all factors of a layer. kProduct: all
  // workers of the host have them. kOutcome: the host gets the mean, or parts
  // of the product.
  enum class EventKind {
    kBackward,
    kReady,
    kSummed,
    kResult,
    kFactors,
    kProduct,
    kOutcome
  };

  // Event of the iteration. Of events at the same time, the event that was
  // added first comes first, so that every process predicts the same times.
  struct Event {
    double time = 0;                        // Time of the event.
    int64_t order = 0;                      // Number of events added before it.
    EventKind kind = EventKind::kBackward;  // Kind of event.
    size_t layer = 0;                       // Index of the layer.
    const Chunk* chunk = nullptr;  // kSummed, kResult: the chunk, if any.
    // kSummed, kOutcome: number of values, and the time at which the last one
    // is there.
    double elements = 0;
    double last = 0;

    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  // Adds an event.
  void Add(double time, EventKind kind, size_t layer,
           const Chunk* chunk = nullptr) {
    events_.push({time, added_++, kind, layer, chunk});
  }
  // Books the sum of a host's gradients, of a chunk or of a layer without
  // chunks, and adds the event for its first values.
  void AddSum(double now, size_t layer, const Chunk* chunk, double elements) {
    const Arrival summed = links_.WithinHost(now, elements, WireType::kFloat32);
    const Event event = {summed.first, added_++, EventKind::kSummed, layer,
                         chunk,        elements, summed.last};
    if (summed.first == now) return Take(event);
    events_.push(event);
  }
  // Adds the event for an outcome of `elements` values that arrives at the
  // hosts. The workers hand on the first values while the last ones arrive.
  void AddOutcome(const Arrival& there, size_t layer, double elements) {
    const double seconds =
        links_.WithinHostSeconds(elements, WireType::kFloat32);
    if (seconds == 0) {
      done_[layer] = std::max(done_[layer], there.last);
      return;
    }
    events_.push({std::max(there.first, there.last - seconds), added_++,
                  EventKind::kOutcome, layer, nullptr, elements, there.last});
  }

  // Takes events in order of time until none is left.
  void Run();
  // Handles one event, by one of the functions below.
  void Take(const Event& event);
  // Plays the backward pass of one layer.
  void Backward(double now, size_t layer);
  // Sends the layer, or holds it back.
  void Ready(double now, size_t layer);
  // Books the layer's transfers up to the next event in the diagram. On a ring
  // these are all transfers of the round, or of its first half with decoupled
  // rounds.
  void Send(double now, size_t layer);
  // Push books the contributions to a chunk, and SendRing a layer's hops, of
  // sums that are complete at `summed`. Result books the chunk's result.
  void Push(double now, const Chunk& chunk, double summed);
  void SendRing(double now, size_t layer, double summed);
  void Result(double now, const Chunk& chunk);
  // Books what the workers of a host hand on to each other of an outcome. The
  // layer, or its chunk, is then done.
  void HandOn(double now, size_t layer, double elements, double last);
  // Books an all-reduce on a ring. With `halves` of 1, books one of its halves
  // (reduce-scatter or all-gather); with 2, both.
  Arrival Ring(double now, size_t layer, int halves);
  // Books the broadcast of both factors of a layer. Factors sends them to the
  // other hosts. ShareFactors hands those of other hosts on to all workers.
  void Factors(double now, size_t layer);
  void ShareFactors(double now, size_t layer);
  // Books the second halves of decoupled rounds, from `now` on.
  void Request(double now);

  const Scene& scene_;  // Not owned.
  LinkBookings links_;  // Links of all hosts.
  // Events to come, the earliest on top.
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t added_ = 0;  // Number of events added.
  // Layers that are held back, by fusion or to the end of the backward pass.
  std::vector<size_t> held_;
  double held_bytes_ = 0;    // Bytes of these layers.
  double device_ = 0;        // Time when the device is free.
  double backward_end_ = 0;  // Time when all gradients exist.
  // Time when each layer's round is done, or when its factors have arrived if
  // is_late_ is true.
  std::vector<double> done_;
  std::vector<double> ready_;  // Time when each layer's gradient exists.
  // With decoupled rounds: chunks, and the times when all contributions to them
  // are at their shards.
  std::vector<std::pair<double, const Chunk*>> reduced_;
  // With decoupled rounds: time when the reduce-scatter of each layer on a ring
  // is over; 0: the layer is not on a ring.
  std::vector<double> ring_reduced_;
  // With decoupled rounds: true if the next forward pass makes the product of
  // the layer's factors.
  std::vector<bool> is_late_;
};

void Player::Run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    Take(event);
  }
}

void Player::Take(const Event& event) {
  switch (event.kind) {
    case EventKind::kBackward:
      return Backward(event.time, event.layer);
    case EventKind::kReady:
      return Ready(event.time, event.layer);
    case EventKind::kSummed:
      return event.chunk == nullptr
                 ? SendRing(event.time, event.layer, event.last)
                 : Push(event.time, *event.chunk, event.last);
    case EventKind::kResult:
      return Result(event.time, *event.chunk);
    case EventKind::kFactors:
      return ShareFactors(event.time, event.layer);
    case EventKind::kProduct: {
      const double end =
          Occupy(event.time, scene_.ProductSeconds(event.layer), device_);
      return AddOutcome({end, end}, event.layer,
                        scene_.ProductElements(event.layer));
    }
    case EventKind::kOutcome:
      return HandOn(event.time, event.layer, event.elements, event.last);
  }
}

void Player::Backward(double now, size_t layer) {
  const double end = Occupy(
      now, absl::ToDoubleSeconds(scene_.model.times[layer].backward), device_);
  Add(end, EventKind::kReady, layer);
  if (layer > 0) {
    Add(end, EventKind::kBackward, layer - 1);
  } else {
    backward_end_ = end;
  }
}

// Counts bytes as SendPlan does on a worker: each value of the gradient or of
// the factors once, however many receivers it has. After layer 0 the backward
// pass is over, so all layers that are held back go.
void Player::Ready(double now, size_t layer) {
  ready_[layer] = now;
  const Route& route = scene_.routes[layer];
  const LayerSpec& spec = scene_.layers[layer];
  const double elements =
      route.scheme == Scheme::kFactor
          ? static_cast<double>(spec.rows) *
                static_cast<double>(spec.m + spec.n)
          : static_cast<double>(spec.parameters) * scene_.model.share;
  held_.push_back(layer);
  held_bytes_ += elements * static_cast<double>(WireBytes(route.wire));
  const bool holds =
      layer > 0 && (scene_.model.sequential ||
                    held_bytes_ < static_cast<double>(scene_.fusion_bytes));
  if (holds) return;
  held_bytes_ = 0;
  for (const size_t each : std::exchange(held_, {})) Send(now, each);
}

void Player::Send(double now, size_t layer) {
  const Scheme scheme = scene_.routes[layer].scheme;
  // A single worker has no peer, so its layer is done at once. But several
  // workers on a single host must still multiply each other's factors.
  if (scene_.cluster.workers == 1 && scheme != Scheme::kServer) {
    done_[layer] = now;
    return;
  }
  switch (scheme) {
    case Scheme::kServer:
      for (const Chunk& chunk :
           scene_.placement.layer_chunks(static_cast<int>(layer))) {
        AddSum(now, layer, &chunk, scene_.ElementsOf(chunk));
      }
      return;
    case Scheme::kFactor:
      return Factors(now, layer);
    case Scheme::kRing:
      return AddSum(now, layer, /*chunk=*/nullptr, scene_.ElementsOf(layer));
  }
}

void Player::SendRing(double now, size_t layer, double summed) {
  Arrival there = Ring(now, layer, scene_.model.decoupled ? 1 : 2);
  there.last = std::max(there.last, summed);
  if (scene_.model.decoupled) {
    ring_reduced_[layer] = there.last;
  } else {
    AddOutcome(there, layer, scene_.ElementsOf(layer));
  }
}

void Player::Push(double now, const Chunk& chunk, double summed) {
  const double elements = scene_.ElementsOf(chunk);
  const double there = std::max(
      summed, links_.ToShard(now, static_cast<size_t>(chunk.shard), elements,
                             scene_.routes[chunk.layer].wire));
  if (scene_.model.decoupled) {
    reduced_.push_back({there, &chunk});
  } else {
    Add(there, EventKind::kResult, chunk.layer, &chunk);
  }
}

void Player::Result(double now, const Chunk& chunk) {
  const double elements = scene_.ElementsOf(chunk);
  AddOutcome(links_.FromShard(now, static_cast<size_t>(chunk.shard), elements,
                              scene_.routes[chunk.layer].wire),
             chunk.layer, elements);
}

void Player::HandOn(double now, size_t layer, double elements, double last) {
  const double there =
      links_.WithinHost(now, elements, WireType::kFloat32).last;
  done_[layer] = std::max({done_[layer], there, last});
}

Arrival Player::Ring(double now, size_t layer, int halves) {
  const auto hosts = static_cast<double>(scene_.cluster.worker_hosts());
  const double hops = halves * (hosts - 1);
  return links_.AroundRing(now, halves, hops, scene_.ElementsOf(layer) / hosts,
                           scene_.routes[layer].wire);
}

void Player::Factors(double now, size_t layer) {
  const LayerSpec& spec = scene_.layers[layer];
  const WireType wire = scene_.routes[layer].wire;
  const ClusterShape& cluster = scene_.cluster;
  const Arrival shared = links_.WithinHost(
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
    links_.AmongHosts(now, times, rows * static_cast<double>(spec.m), wire);
    there =
        links_.AmongHosts(now, times, rows * static_cast<double>(spec.n), wire)
            .last +
        links_.latency();
  }
  Add(std::max(there, shared.last), EventKind::kFactors, layer);
}

void Player::ShareFactors(double now, size_t layer) {
  const ClusterShape& cluster = scene_.cluster;
  const double there =
      links_
          .WithinHost(now,
                      scene_.FactorElements(
                          layer, cluster.workers - cluster.host_workers_most()),
                      WireType::kFloat32)
          .last;
  // The next forward pass makes the products of factors that arrive after the
  // backward pass.
  if (scene_.model.decoupled && backward_end_ > 0 && there >= backward_end_) {
    done_[layer] = there;
    is_late_[layer] = true;
  } else {
    Add(there, EventKind::kProduct, layer);
  }
}

// Workers request the results of chunks in forward order, once the backward
// pass is over. A request is a frame without payload. All requests leave before
// the first result.
void Player::Request(double now) {
  absl::c_stable_sort(reduced_, [](const auto& a, const auto& b) {
    return a.second->layer < b.second->layer;
  });
  for (auto& [there, chunk] : reduced_) {
    const double asked = links_.ToShard(now, static_cast<size_t>(chunk->shard),
                                        /*elements=*/0, WireType::kFloat32);
    there = std::max(there, asked);
  }
  auto next = reduced_.begin();
  for (size_t layer = 0; layer < scene_.layers.size(); ++layer) {
    if (ring_reduced_[layer] > 0) {
      AddOutcome(Ring(std::max(now, ring_reduced_[layer]), layer, /*halves=*/1),
                 layer, scene_.ElementsOf(layer));
    }
    for (; next != reduced_.end() &&
           static_cast<size_t>(next->second->layer) == layer;
         ++next) {
      Result(next->first, *next->second);
    }
    Run();  // Workers hand this layer on before the next one.
  }
}

double Player::Play() {
  const TimeModel& model = scene_.model;
  // Without decoupled rounds the iteration begins with the forward pass, when
  // all rounds of the iteration before are done. With decoupled rounds it
  // begins with the backward pass and ends with the next forward pass.
  if (!model.decoupled) {
    for (const LayerTime& time : model.times) {
      device_ += absl::ToDoubleSeconds(time.forward);
    }
  }
  Add(device_, EventKind::kBackward, scene_.layers.size() - 1);
  Run();
  if (!model.decoupled) {
    return std::max(device_, *absl::c_max_element(done_));
  }
  Request(backward_end_);
  // Products of factors that came in time may last longer than the backward
  // pass.
  double forward = device_;
  for (size_t layer = 0; layer < scene_.layers.size(); ++layer) {
    forward = std::max(forward, done_[layer]);
    if (is_late_[layer]) {
      forward += scene_.ProductSeconds(layer);
      forward += links_.WithinHostSeconds(scene_.ProductElements(layer),
                                          WireType::kFloat32);
    }
    forward += absl::ToDoubleSeconds(model.times[layer].forward);
  }
  return forward;
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
