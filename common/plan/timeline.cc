#include "common/plan/timeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/fusion.h"

namespace nereus {
namespace {

// As frames are cut (common/protocol/frame.h).
constexpr double kFrameElements = 65536;
constexpr double kHeaderBytes = 64;
// What fused frames share: as large as the largest frame.
constexpr double kMessageBytes = kFrameElements * 4 + kHeaderBytes;

// One iteration under way. Times are seconds from its start: of the forward,
// or, where the next one overlaps with what is gathered, of the backward.
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

  double ComputeSeconds() const;
  double Play();
  // After that.
  std::vector<double> SyncSeconds() const {
    std::vector<double> seconds = done_;
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] -= ready_[i];
    return seconds;
  }

 private:
  enum class What { kBackward, kReady, kResult, kProduct };

  // Of equal times, the first that was added first.
  struct Event {
    double time = 0;
    int64_t order = 0;
    What what = What::kBackward;
    size_t layer = 0;
    const Chunk* chunk = nullptr;
    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  void Add(double time, What what, size_t layer, const Chunk* chunk = nullptr) {
    events_.push({time, added_++, what, layer, chunk});
  }
  void Run();
  void Take(const Event& event);
  void Backward(double now, size_t layer);
  void Ready(double now, size_t layer);
  void Send(double now, size_t layer);
  // From all workers; when it is there.
  double ToOwner(double now, size_t owner, double elements, WireType wire);
  void Push(double now, const Chunk& chunk);
  void Result(double now, const Chunk& chunk);
  // Both halves of an all-reduce, or one.
  void Ring(double now, size_t layer, int halves);
  void Factors(double now, size_t layer);
  void Gather(double now);

  // Seconds that one interface takes for so many values. `joins`: something
  // waits for the same peer, and shares its message if it may.
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
  // Whether what is there now shares a message that leaves later.
  bool Joins(double now, double leaves) const {
    return fusion_bytes_ != kNoFusion && now < leaves;
  }
  double ElementsOf(const Chunk& chunk) const {
    return static_cast<double>(chunk.length) * model_.share;
  }
  static double Enqueue(double now, double seconds, double& free_at) {
    free_at = std::max(free_at, now) + seconds;
    return free_at;
  }
  // All workers send this so many times, and receive it.
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
  double message_seconds() const {
    return absl::ToDoubleSeconds(model_.link.message_time);
  }
  double latency() const { return absl::ToDoubleSeconds(model_.link.latency); }
  double product_seconds(size_t layer) const {
    return absl::ToDoubleSeconds(model_.times[layer].backward) / 2 *
           static_cast<double>(workers_ - 1);
  }

  const absl::Span<const LayerSpec> layers_;
  const Placement& placement_;
  const size_t workers_;
  const TimeModel& model_;
  const absl::Span<const Route> routes_;
  const int64_t fusion_bytes_;

  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t added_ = 0;
  std::vector<double> out_;  // By node: when it is free.
  std::vector<double> in_;
  // When the last message to a shard, and from it, begins to leave; and when
  // what goes from worker to worker, hop by hop, has left.
  std::vector<double> pushes_leave_;
  std::vector<double> results_leave_;
  double peers_leave_ = 0;
  std::vector<size_t> held_;  // Layers.
  double held_bytes_ = 0;
  double device_ = 0;
  double backward_end_ = 0;
  bool gathering_ = false;
  // By layer: when its round is done; with decoupled rounds, of a factor layer,
  // when its factors are there.
  std::vector<double> done_;
  std::vector<double> ready_;  // By layer: when its gradient is there.
  // With decoupled rounds: what has been reduced, and when.
  std::vector<std::pair<double, const Chunk*>> reduced_;
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
    if (worker == owner) continue;  // Within the node.
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

void Player::Ring(double now, size_t layer, int halves) {
  const double elements =
      static_cast<double>(layers_[layer].parameters) * model_.share;
  const auto workers = static_cast<double>(workers_);
  const double hops = halves * (workers - 1);
  // Each hop follows the one before it. Messages that all layers share are in
  // no queue twice, but one of each hop is on the last layer's way.
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

// What was reduced is asked for in forward order, once backward is over.
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
