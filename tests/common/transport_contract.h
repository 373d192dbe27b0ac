#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/transport/transport.h"

namespace nereus {

// A kind of transport between processes that keeps the promises of transport.h.
// To run the tests of transport_contract.cc on a kind, instantiate
// TransportContractTest with it.
struct TransportKind {
  std::string name;
  // Starts a transport that listens at 127.0.0.1:`port`; 0 picks a free port.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(int port)> start;
  // True if payloads travel with checksums.
  bool has_checksums = true;

  friend std::ostream& operator<<(std::ostream& out,
                                  const TransportKind& kind) {
    return out << kind.name;
  }
};

// Upper bound of each wait: more than any wait takes, even on a slow machine
// under a sanitizer.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Members of the job of TestHello.
inline const PeerId kWorker0 = PeerId::Worker(0);
inline const PeerId kWorker1 = PeerId::Worker(1);
inline const PeerId kShard0 = PeerId::Shard(0);

// A roster of three workers and two shards.
inline Roster TestRoster() {
  return {{PeerId::Worker(0), 10},
          {PeerId::Worker(1), 11},
          {PeerId::Worker(2), 12},
          {PeerId::Shard(0), 20},
          {PeerId::Shard(1), 21}};
}

inline Hello TestHello(PeerId self) {
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.build = "test";
  hello.job = 77;
  hello.epoch = 5;
  hello.model_signature = 0xabcdef;
  hello.self = self;
  hello.incarnation = TestRoster().at(self);
  return hello;
}

// Makes a contribution with `payload`. Tests tell frames apart by `layer`.
inline Frame TestFrame(PeerId sender, uint32_t layer, Buffer payload) {
  Frame frame;
  frame.header.kind = FrameKind::kContribution;
  frame.header.wire = WireType::kFloat32;
  frame.header.job = 77;
  frame.header.epoch = 5;
  frame.header.layer = layer;
  frame.header.sender = sender;
  frame.header.payload_bytes = static_cast<uint32_t>(payload.bytes());
  frame.payload = std::move(payload);
  frame.priority = layer;
  frame.fused = layer % 3 != 0;
  return frame;
}

// Returns `count` floats that depend on `seed` and their position.
inline float TestValue(uint32_t seed, int64_t i) {
  return static_cast<float>((seed * 31 + static_cast<uint32_t>(i)) % 1000003);
}
inline Buffer TestPayload(uint32_t seed, int64_t count) {
  Buffer buffer = Buffer::Allocate(count * static_cast<int64_t>(sizeof(float)));
  for (int64_t i = 0; i < count; ++i) buffer.floats()[i] = TestValue(seed, i);
  return buffer;
}
inline bool IsTestPayload(uint32_t seed, const Buffer& payload) {
  for (int64_t i = 0; i < payload.float_count(); ++i) {
    if (payload.floats()[i] != TestValue(seed, i)) return false;
  }
  return true;
}

// A member of a job. It records all calls of its transport's handler.
class TestNode : public FrameHandler {
 public:
  struct Heard {
    PeerId from;
    FrameHeader header;
    bool intact = false;  // True if the payload equals TestPayload(layer, ...).
  };
  struct Ended {
    PeerId peer;
    absl::Status reason;
  };

  TestNode(std::unique_ptr<Transport> transport, PeerId self)
      : transport_(std::move(transport)), self_(self) {}

  // Starts a node of `kind` with a roster.
  static std::unique_ptr<TestNode> Start(const TransportKind& kind,
                                         PeerId self) {
    auto transport = kind.start(0);
    NEREUS_CHECK(transport.ok()) << transport.status();
    auto node = std::make_unique<TestNode>(*std::move(transport), self);
    node->transport().SetRoster(TestHello(self), TestRoster());
    return node;
  }

  Transport& transport() { return *transport_; }
  PeerId self() const { return self_; }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(transport_->port());
  }
  void Dial(const TestNode& other) {
    transport_->Connect(other.self(), other.address(),
                        {SteadyNow() + kPatience});
  }
  void SendTo(PeerId to, uint32_t layer, int64_t count) {
    transport_->Send(to, TestFrame(self_, layer, TestPayload(layer, count)));
  }
  // Closes the transport; the records stay.
  void Stop() { transport_.reset(); }
  bool stopped() const { return transport_ == nullptr; }

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) override {
    return landing ? landing(from, header) : Landing::Scratch();
  }
  void OnFrame(PeerId from, const Frame& frame) override {
    heard.push_back(
        {from, frame.header, IsTestPayload(frame.header.layer, frame.payload)});
    if (then) then(frame.header);
  }
  void OnConnected(PeerId peer) override { connected.push_back(peer); }
  void OnDisconnected(PeerId peer, const absl::Status& reason) override {
    ended.push_back({peer, reason});
  }

  std::function<absl::StatusOr<Landing>(PeerId, const FrameHeader&)> landing;
  // Runs after each frame that the node records.
  std::function<void(const FrameHeader&)> then;
  std::vector<Heard> heard;
  std::vector<PeerId> connected;
  std::vector<Ended> ended;

 private:
  std::unique_ptr<Transport> transport_;
  const PeerId self_;
};

// Makes the frames of `layer` and of later layers wait until the gate opens.
class Gate {
 public:
  // Frames to `node` pass when the gate is open.
  Gate(TestNode& node, uint32_t layer) {
    node.landing = [this, layer](PeerId, const FrameHeader& header) {
      announced.push_back(header.layer);
      if (header.layer >= layer && !open) return Landing::Wait();
      return Landing::Scratch();
    };
  }
  std::vector<uint32_t> announced;
  bool open = false;
};

// Sends `frames` frames of layer 7, of 256 KiB each, which share their payload.
// Their chunks count from 0.
inline void Flood(TestNode& from, PeerId to, uint32_t frames) {
  Frame frame = TestFrame(from.self(), 7, TestPayload(7, kFrameElementsMax));
  for (frame.header.chunk = 0; frame.header.chunk < frames;
       ++frame.header.chunk) {
    from.transport().Send(to, frame);
  }
}

// Polls `nodes` in turn until `done` returns true; false if this takes longer
// than the upper bound.
inline bool PollUntil(std::initializer_list<TestNode*> nodes,
                      const std::function<bool()>& done) {
  const absl::Time deadline = SteadyNow() + kPatience;
  while (!done()) {
    if (SteadyNow() > deadline) return false;
    for (TestNode* node : nodes) {
      if (!node->stopped()) {
        node->transport().Poll(absl::Milliseconds(1), *node);
      }
    }
  }
  return true;
}

// Polls `nodes` until no byte more leaves `sender` for some time. On a busy
// machine, some time may be a single turn, so turns are counted too.
inline bool PollUntilStill(std::initializer_list<TestNode*> nodes,
                           TestNode& sender) {
  constexpr int kTurnsMin = 100;
  int64_t before = -1;
  int turns = 0;
  absl::Time since;
  return PollUntil(nodes, [&] {
    const int64_t sent = sender.transport().traffic()[0].bytes_sent;
    if (sent != before) {
      before = sent;
      turns = 0;
      since = SteadyNow();
    }
    return ++turns > kTurnsMin && SteadyNow() - since > absl::Milliseconds(300);
  });
}

// Connects `dialler` to `other`; true once both have recorded the connection.
inline bool JoinNodes(TestNode& dialler, TestNode& other) {
  const size_t before = dialler.connected.size();
  const size_t other_before = other.connected.size();
  dialler.Dial(other);
  return PollUntil({&dialler, &other}, [&] {
    return dialler.connected.size() > before &&
           other.connected.size() > other_before;
  });
}

// Worker 0 and shard 0, which are not connected yet.
struct NodePair {
  explicit NodePair(const TransportKind& kind) : NodePair(kind, kind) {}
  NodePair(const TransportKind& of_worker, const TransportKind& of_shard)
      : worker(TestNode::Start(of_worker, kWorker0)),
        shard(TestNode::Start(of_shard, kShard0)) {}

  // Connects the worker to the shard.
  bool Join() { return JoinNodes(*worker, *shard); }
  // Polls both until `done` returns true, as PollUntil does.
  bool Await(const std::function<bool()>& done) {
    return PollUntil({worker.get(), shard.get()}, done);
  }

  std::unique_ptr<TestNode> worker;
  std::unique_ptr<TestNode> shard;
};

class TransportContractTest : public testing::TestWithParam<TransportKind>,
                              protected NodePair {
 protected:
  TransportContractTest() : NodePair(GetParam()) {}
};

}  // namespace nereus
