#include "common/plan/timeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/fusion.h"

// The player behind Timeline: one iteration as a queue of events.
//
//   kBackward --> kReady --> (Send) --server--> kResult --> done
//    layer L-1     gradient           --factor--> kProduct --> done
//    ... layer 0   exists             --ring----------------> done
//
// Backward of a layer starts backward of the layer before it. Ready collects
// layers until fusion lets them go. Send books the transfer in the queues of
// all links (out_, in_) at once; a booking is a time at which the link becomes
// free. With decoupled rounds the second half of each round is not played as an
// event but by Gather, in forward order, after all backwards.
//
// Read Play, then Take and the functions that it calls, in the order of the
// diagram.

namespace nereus {
namespace {

// Sizes of frames (common/protocol/frame.h).
constexpr double kFrameElements = 65536;
constexpr double kHeaderBytes = 64;
// Length of a full message: fused frames share messages as long as the longest
// frame.
constexpr double kMessageBytes = kFrameElements * 4 + kHeaderBytes;

// An iteration under way. Times are seconds from its start: the start of the
// forward pass or, with decoupled rounds, of the backward pass, since the next
// forward overlaps with the gathering.
class Player {
 public:
  Player(absl::Span<const LayerSpec> layers, const Placement& placement,
         const ClusterShape& cluster, const TimeModel& model,
         absl::Span<const Route> routes, int64_t fusion_bytes)
      : layers_(layers),
        placement_(placement),
        workers_(static_cast<size_t>(cluster.workers)),
        model_(model),
        routes_(routes),
        fusion_bytes_(fusion_bytes),
        out_(std::max(cluster.workers, cluster.servers), 0.0),
        in_(out_.size(), 0.0),
        pushes_leave_(out_.size(), 0.0),
        results_leave_(out_.size(), 0.0),
        done_(layers.size(), 0.0),
        ready_(layers.size(), 0.0) {}

  // Returns the seconds that the device computes: all layers, and products of
  // factors.
  double ComputeSeconds() const;
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
  // Kinds of events: a layer's backward may begin; its gradient exists; all
  // contributions to a chunk are at its shard; all factors of a layer are at
  // the workers.
  enum class What { kBackward, kReady, kResult, kProduct };

  // Event of the iteration. Of equal times, the event that was added first
  // comes first, so that every machine predicts the same.
  struct Event {
    double time = 0;               // Time of the event.
    int64_t order = 0;             // Number of events added before it.
    What what = What::kBackward;   // Kind of event.
    size_t layer = 0;              // Index of the layer.
    const Chunk* chunk = nullptr;  // kResult: the chunk.
    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  // Adds an event.
  void Add(double time, What what, size_t layer, const Chunk* chunk = nullptr) {
    events_.push({time, added_++, what, layer, chunk});
  }
  // Takes events in order of time until there is none.
  void Run();
  void Take(const Event& event);
  void Backward(double now, size_t layer);
  void Ready(double now, size_t layer);
  // Books the first transfer of a layer, and of a ring without decoupling all.
  void Send(double now, size_t layer);
  // Books a transfer of all workers to the shard on node `owner`. Returns the
  // time when all of it has arrived.
  double ToOwner(double now, size_t owner, double elements, WireType wire);
  // Books the contributions to a chunk, and the result of a chunk.
  void Push(double now, const Chunk& chunk);
  void Result(double now, const Chunk& chunk);
  // Books `halves` halves of an all-reduce: reduce-scatter and all-gather.
  void Ring(double now, size_t layer, int halves);
  // Books the broadcast of both factors.
  void Factors(double now, size_t layer);
  // Books the second halves of decoupled rounds, from `now` on.
  void Gather(double now);

  // Returns the seconds that one end of a link takes for a transfer of so many
  // values. `joins`: another transfer waits for the same peer, and this one may
  // share its message. Without fusion each frame is a message.
  double Carry(double elements, WireType wire, bool joins) const {
    const double frames = std::max(1.0, std::ceil(elements / kFrameElements));
    const double bytes =
        elements * static_cast<double>(WireBytes(wire)) + frames * kHeaderBytes;
    double messages = frames;
    if (fusion_bytes_ != kNoFusion) {
      messages = bytes / kMessageBytes;
      if (!joins) messages = std::ceil(messages);
    }
    return bytes / model_.link.rate + messages * message_seconds();
  }
  // True if a transfer that is ready now shares the message that leaves at
  // `leaves`.
  bool Joins(double now, double leaves) const {
    return fusion_bytes_ != kNoFusion && now < leaves;
  }
  // Returns the number of a chunk's values that travel.
  double ElementsOf(const Chunk& chunk) const {
    return static_cast<double>(chunk.length) * model_.share;
  }
  // Occupies a resource for `seconds`, from `now` on or when it is free.
  // Returns the time when it is free again.
  static double Enqueue(double now, double seconds, double& free_at) {
    free_at = std::max(free_at, now) + seconds;
    return free_at;
  }
  // Books a transfer that each worker sends and receives `times` times. Returns
  // the time when it has left and arrived everywhere.
  double ByAll(double now, double times, double elements, WireType wire) {
    const double seconds =
        times * Carry(elements, wire, Joins(now, peers_leave_));
    double there = now;
    for (size_t worker = 0; worker < workers_; ++worker) {
      there = std::max({there, Enqueue(now, seconds, out_[worker]),
                        Enqueue(now, seconds, in_[worker])});
      peers_leave_ = std::max(peers_leave_, out_[worker]);
    }
    return there;
  }
  // Seconds that a message costs beside its bytes.
  double message_seconds() const {
    return absl::ToDoubleSeconds(model_.link.message_time);
  }
  // Latency of a link, in seconds.
  double latency() const { return absl::ToDoubleSeconds(model_.link.latency); }
  // Returns the seconds of multiplying the peers' factors of a layer. Backward
  // is two products of that size, one of which makes the worker's own gradient.
  double product_seconds(size_t layer) const {
    return absl::ToDoubleSeconds(model_.times[layer].backward) / 2 *
           static_cast<double>(workers_ - 1);
  }

  const absl::Span<const LayerSpec> layers_;  // Layers of the model.
  const Placement& placement_;                // Shard of each chunk.
  const size_t workers_;                      // Number of workers.
  const TimeModel& model_;                    // Speeds of links and device.
  const absl::Span<const Route> routes_;      // Route of each layer.
  const int64_t fusion_bytes_;                // Fusion threshold.

  // Events to come, the earliest on top.
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t added_ = 0;        // Number of events added.
  std::vector<double> out_;  // Time when each node's sending side is free.
  std::vector<double> in_;   // Time when each node's receiving side is free.
  // Time when the last message to each shard begins to leave. A later transfer
  // to the shard joins it until then.
  std::vector<double> pushes_leave_;
  // Time when the last message from each shard begins to leave.
  std::vector<double> results_leave_;
  // Time when the last message between workers has left.
  double peers_leave_ = 0;
  std::vector<size_t> held_;  // Layers that fusion holds back.
  double held_bytes_ = 0;     // Bytes of these layers.
  double device_ = 0;         // Time when the device is free.
  double backward_end_ = 0;   // Time when all gradients exist.
  bool gathering_ = false;    // True in Gather.
  // Time when each layer's round is done. With decoupled rounds and factors:
  // when the factors have arrived; their product is part of the next forward.
  std::vector<double> done_;
  std::vector<double> ready_;  // Time when each layer's gradient exists.
  // With decoupled rounds: chunks and the times when they are reduced.
  std::vector<std::pair<double, const Chunk*>> reduced_;
  // With decoupled rounds: time when each layer on a ring is reduced; 0: none.
  std::vector<double> ring_reduced_;
};

void Player::Run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    Take(event);
  }
}

void Player::Take(const Event& event) {
  switch (event.what) {
    case What::kBackward:
      return Backward(event.time, event.layer);
    case What::kReady:
      return Ready(event.time, event.layer);
    case What::kResult:
      return Result(event.time, *event.chunk);
    case What::kProduct:
      done_[event.layer] =
          Enqueue(event.time, product_seconds(event.layer), device_);
  }
}

void Player::Backward(double now, size_t layer) {
  const double end = Enqueue(
      now, absl::ToDoubleSeconds(model_.times[layer].backward), device_);
  Add(end, What::kReady, layer);
  if (layer > 0) {
    Add(end, What::kBackward, layer - 1);
  } else {
    backward_end_ = end;
  }
}

// The bytes count as the worker counts them: what it would send to one
// receiver. Layer 0 is the last of the backward pass, so nothing waits longer.
void Player::Ready(double now, size_t layer) {
  ready_[layer] = now;
  const Route& route = routes_[layer];
  const LayerSpec& spec = layers_[layer];
  const double elements =
      route.scheme == Scheme::kFactor
          ? static_cast<double>(spec.rows * (spec.m + spec.n))
          : static_cast<double>(spec.parameters) * model_.share;
  held_.push_back(layer);
  held_bytes_ += elements * static_cast<double>(WireBytes(route.wire));
  const bool holds =
      layer > 0 && held_bytes_ < static_cast<double>(fusion_bytes_);
  if (holds) return;
  held_bytes_ = 0;
  for (const size_t each : std::exchange(held_, {})) Send(now, each);
}

void Player::Send(double now, size_t layer) {
  // A single worker has no peer; its layer is done at once.
  if (workers_ == 1 && routes_[layer].scheme != Scheme::kServer) {
    done_[layer] = now;
    return;
  }
  switch (routes_[layer].scheme) {
    case Scheme::kServer:
      for (const Chunk& chunk :
           placement_.layer_chunks(static_cast<int>(layer))) {
        Push(now, chunk);
      }
      return;
    case Scheme::kFactor:
      return Factors(now, layer);
    case Scheme::kRing:
      return Ring(now, layer, model_.decoupled ? 1 : 2);
  }
}

double Player::ToOwner(double now, size_t owner, double elements,
                       WireType wire) {
  double& leaves = pushes_leave_[owner];
  const bool joins = Joins(now, leaves);
  const double seconds = Carry(elements, wire, joins);
  double there = now;
  size_t senders = 0;
  for (size_t worker = 0; worker < workers_; ++worker) {
    // Within a node nothing travels.
    if (worker == owner) continue;
    if (!joins) leaves = std::max({leaves, now, out_[worker]});
    there = std::max(there, Enqueue(now, seconds, out_[worker]));
    ++senders;
  }
  if (senders > 0) {
    const double all = static_cast<double>(senders) * seconds;
    there = std::max(there, Enqueue(now, all, in_[owner])) + latency();
  }
  return there;
}

void Player::Push(double now, const Chunk& chunk) {
  const double there = ToOwner(now, static_cast<size_t>(chunk.shard),
                               ElementsOf(chunk), routes_[chunk.layer].wire);
  if (model_.decoupled) {
    reduced_.push_back({there, &chunk});
  } else {
    Add(there, What::kResult, chunk.layer, &chunk);
  }
}

void Player::Result(double now, const Chunk& chunk) {
  const auto owner = static_cast<size_t>(chunk.shard);
  double& leaves = results_leave_[owner];
  const bool joins = Joins(now, leaves);
  if (!joins) leaves = std::max(now, out_[owner]);
  const double seconds =
      Carry(ElementsOf(chunk), routes_[chunk.layer].wire, joins);
  double there = now;
  size_t receivers = 0;
  for (size_t worker = 0; worker < workers_; ++worker) {
    if (worker == owner) continue;
    there = std::max(there, Enqueue(now, seconds, in_[worker]));
    ++receivers;
  }
  if (receivers > 0) {
    const double all = static_cast<double>(receivers) * seconds;
    there = std::max(there, Enqueue(now, all, out_[owner])) + latency();
  }
  done_[chunk.layer] = std::max(done_[chunk.layer], there);
}

// Each hop follows the one before it, so latency counts once for each hop. A
// message that layers share is booked once, by the layer that opens it; the
// layer that joins still waits for it on each hop.
void Player::Ring(double now, size_t layer, int halves) {
  const double elements =
      static_cast<double>(layers_[layer].parameters) * model_.share;
  const auto workers = static_cast<double>(workers_);
  const double hops = halves * (workers - 1);
  const bool joins = Joins(now, peers_leave_);
  double there = ByAll(now, hops, elements / workers, routes_[layer].wire) +
                 hops * latency();
  if (joins) there += hops * message_seconds();
  if (model_.decoupled && !gathering_) {
    ring_reduced_[layer] = there;
  } else {
    done_[layer] = there;
  }
}

void Player::Factors(double now, size_t layer) {
  const LayerSpec& spec = layers_[layer];
  const WireType wire = routes_[layer].wire;
  const auto peers = static_cast<double>(workers_ - 1);
  ByAll(now, peers, static_cast<double>(spec.rows * spec.m), wire);
  const double there =
      ByAll(now, peers, static_cast<double>(spec.rows * spec.n), wire) +
      latency();
  if (model_.decoupled) {
    done_[layer] = there;
  } else {
    Add(there, What::kProduct, layer);
  }
}

// Workers request reduced chunks in forward order, once backward is over. All
// requests leave before the first result: they are frames without payload.
void Player::Gather(double now) {
  gathering_ = true;
  std::stable_sort(reduced_.begin(), reduced_.end(),
                   [](const auto& a, const auto& b) {
                     return a.second->layer < b.second->layer;
                   });
  for (auto& [there, chunk] : reduced_) {
    const double asked = ToOwner(now, static_cast<size_t>(chunk->shard),
                                 /*elements=*/0, WireType::kFloat32);
    there = std::max(there, asked);
  }
  auto next = reduced_.begin();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (ring_reduced_[layer] > 0) {
      Ring(std::max(now, ring_reduced_[layer]), layer, 1);
    }
    for (; next != reduced_.end() &&
           static_cast<size_t>(next->second->layer) == layer;
         ++next) {
      Result(next->first, *next->second);
    }
  }
}

double Player::ComputeSeconds() const {
  double seconds = absl::ToDoubleSeconds(TotalTime(model_.times));
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (routes_[layer].scheme == Scheme::kFactor) {
      seconds += product_seconds(layer);
    }
  }
  return seconds;
}

double Player::Play() {
  ring_reduced_.assign(layers_.size(), 0.0);
  // Wait-free: the forward pass comes first, and its rounds are long done.
  // Decoupled: the iteration is counted from the end of one backward to the
  // next.
  if (!model_.decoupled) {
    for (const LayerTime& time : model_.times) {
      device_ += absl::ToDoubleSeconds(time.forward);
    }
  }
  Add(device_, What::kBackward, layers_.size() - 1);
  Run();
  if (!model_.decoupled) {
    return std::max(device_, *std::max_element(done_.begin(), done_.end()));
  }
  Gather(backward_end_);
  double forward = backward_end_;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    forward = std::max(forward, done_[layer]);
    if (routes_[layer].scheme == Scheme::kFactor) {
      forward += product_seconds(layer);
    }
    forward += absl::ToDoubleSeconds(model_.times[layer].forward);
  }
  return forward;
}

}  // namespace

absl::Status LinkSpeed::Validate() const {
  if (!(rate > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate is ", rate, ", must be above 0"));
  }
  for (const auto& [name, value] : {std::pair{"latency", latency},
                                    std::pair{"message_time", message_time}}) {
    if (value >= absl::ZeroDuration() && value <= kComputeTimeMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", absl::FormatDuration(value), ", must be from 0 to ",
        absl::FormatDuration(kComputeTimeMax)));
  }
  return absl::OkStatus();
}

absl::Status TimeModel::Validate(absl::Span<const LayerSpec> layers) const {
  if (times.size() != layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "times has ", times.size(), " layers, the model ", layers.size()));
  }
  if (!(share > 0 && share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("share is ", share, ", must be above 0 and at most 1"));
  }
  return link.Validate();
}

Timeline::Played Timeline::PlayLayers(absl::Span<const Route> routes,
                                      int64_t fusion_bytes) const {
  Player player(layers_, placement_, cluster_, model_, routes, fusion_bytes);
  Played played;
  played.seconds = player.Play();
  played.compute_seconds = player.ComputeSeconds();
  played.sync_seconds = player.SyncSeconds();
  return played;
}

}  // namespace nereus
