// Measures the speed of frames between two processes over loopback.
//
//   bazel run -c opt //tests/benchmarks:transport_benchmark
//   transport_benchmark --frames=2048 --rounds=9 --shared-memory=off
//
// Unit: MB/s is 10^6 payload bytes per second. The time runs from the first
// Send to the answer that the last frame was checked and delivered. "Both ways"
// is the sum of the two directions. Each figure is the median of the rounds,
// with the slowest and the fastest round. The first round warms up and does not
// count.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/flags/flags.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

struct BenchmarkOptions {
  int frames = 2048;  // 512 MiB per round and direction.
  int rounds = 9;
  bool shared_memory = true;
};

constexpr int64_t kBuffers = 64;  // 16 MiB: more than a cache holds.

// Meanings of a frame's `layer`.
constexpr uint32_t kData = 0;
constexpr uint32_t kDone = 1;  // All frames have arrived.
// Send the same number of frames in the other direction.
constexpr uint32_t kSendToo = 2;
constexpr uint32_t kLeave = 3;

const PeerId kParent = PeerId::Worker(0);
const PeerId kChild = PeerId::Shard(0);

class Node final : public FrameHandler {
 public:
  // Sends and expects `frames` frames per round.
  Node(std::unique_ptr<Transport> transport, PeerId self, PeerId peer,
       int frames)
      : transport_(std::move(transport)),
        self_(self),
        peer_(peer),
        frames_(frames),
        values_(Buffer::AllocateZeroed(kBuffers * kFramePayloadBytesMax)) {
    Hello hello;
    hello.protocol_version = kProtocolVersion;
    hello.self = self;
    transport_->SetRoster(hello, {{kParent, 0}, {kChild, 0}});
    for (int64_t i = 0; i < values_.float_count(); ++i) {
      values_.floats()[i] = static_cast<float>(i % 1000);
    }
  }

  Transport& transport() { return *transport_; }

  void Send(uint32_t what, Buffer payload = Buffer()) {
    Frame frame;
    frame.header.kind = FrameKind::kContribution;
    frame.header.layer = what;
    frame.header.sender = self_;
    frame.header.payload_bytes = static_cast<uint32_t>(payload.bytes());
    frame.payload = std::move(payload);
    transport_->Send(peer_, frame);
  }

  void SendAll() {
    for (int64_t i = 0; i < frames_; ++i) {
      Send(kData, values_.Slice((i % kBuffers) * kFramePayloadBytesMax,
                                kFramePayloadBytesMax));
    }
  }

  void Poll() { transport_->Poll(absl::InfiniteDuration(), *this); }

  absl::StatusOr<Landing> OnHeader(PeerId, const FrameHeader&) override {
    return Landing::Scratch();
  }
  void OnFrame(PeerId, const Frame& frame) override {
    switch (frame.header.layer) {
      case kData:
        if (++received < frames_) return;
        received = 0;
        all_received = true;
        Send(kDone);
        return;
      case kDone:
        all_sent = true;
        return;
      case kSendToo:
        SendAll();
        return;
      default:
        leave = true;
    }
  }
  void OnConnected(PeerId) override { connected = true; }
  void OnDisconnected(PeerId, const absl::Status& reason) override {
    NEREUS_CHECK(reason.ok()) << reason;
    leave = true;
  }

  int received = 0;
  bool connected = false;
  bool all_sent = false;
  bool all_received = false;
  bool leave = false;

 private:
  const std::unique_ptr<Transport> transport_;
  const PeerId self_;
  const PeerId peer_;
  const int frames_;
  const Buffer values_;
};

std::unique_ptr<Node> Start(PeerId self, PeerId peer,
                            const BenchmarkOptions& options) {
  TransportOptions transport_options;
  transport_options.shared_memory = options.shared_memory;
  auto transport = SocketTransport::Start(transport_options);
  NEREUS_CHECK(transport.ok()) << transport.status();
  return std::make_unique<Node>(*std::move(transport), self, peer,
                                options.frames);
}

double OneWay(Node& node) {
  node.all_sent = false;
  const absl::Time start = SteadyNow();
  node.SendAll();
  while (!node.all_sent) node.Poll();
  return absl::ToDoubleSeconds(SteadyNow() - start);
}

double BothWays(Node& node) {
  node.all_sent = node.all_received = false;
  const absl::Time start = SteadyNow();
  node.Send(kSendToo);
  node.SendAll();
  while (!node.all_sent || !node.all_received) node.Poll();
  return absl::ToDoubleSeconds(SteadyNow() - start);
}

// Runs `measure` and prints its speed. `measure` does a round and returns its
// seconds; `bytes` travel in it.
void Report(const char* name, int rounds, double bytes,
            const std::function<double()>& measure) {
  measure();
  std::vector<double> speeds;
  for (int round = 0; round < rounds; ++round) {
    speeds.push_back(bytes / 1e6 / measure());
  }
  absl::c_sort(speeds);
  std::printf("%-10s %8.0f MB/s  (%.0f to %.0f, %d rounds of %.0f MB)\n", name,
              speeds[speeds.size() / 2], speeds.front(), speeds.back(), rounds,
              bytes / 1e6);
}

void RunChild(const BenchmarkOptions& options, int port_pipe) {
  const auto node = Start(kChild, kParent, options);
  const int port = node->transport().port();
  NEREUS_CHECK(write(port_pipe, &port, sizeof(port)) == sizeof(port));
  while (!node->leave) node->Poll();
  node->transport().Shutdown(absl::Seconds(5));
}

void RunParent(const BenchmarkOptions& options, int port_pipe) {
  int port = 0;
  NEREUS_CHECK(read(port_pipe, &port, sizeof(port)) == sizeof(port))
      << "the child did not start";
  const auto node = Start(kParent, kChild, options);
  node->transport().Connect(kChild, absl::StrCat("127.0.0.1:", port),
                            {.deadline = SteadyNow() + absl::Seconds(10)});
  while (!node->connected) node->Poll();
  const double bytes =
      static_cast<double>(options.frames) * kFramePayloadBytesMax;
  Report("one way", options.rounds, bytes, [&] { return OneWay(*node); });
  Report("both ways", options.rounds, 2 * bytes,
         [&] { return BothWays(*node); });
  node->Send(kLeave);
  node->transport().Shutdown(absl::Seconds(5));
}

int Run(const BenchmarkOptions& options) {
  int port_pipe[2];
  NEREUS_CHECK(pipe(port_pipe) == 0);
  // gRPC must not be forked, so the fork comes first.
  const pid_t child = fork();
  NEREUS_CHECK(child >= 0);
  if (child == 0) {
    RunChild(options, port_pipe[1]);
    return EXIT_SUCCESS;
  }
  close(port_pipe[1]);  // Without this, the read would not end with the child.
  RunParent(options, port_pipe[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  BenchmarkOptions options;
  CLI::App app("Times frames between two processes over loopback.");
  AddFlag(app, "frames", options.frames, "frames of 256 KiB per round")
      ->check(CLI::Range(1, 1 << 20));
  AddFlag(app, "rounds", options.rounds, "timed rounds, after an untimed round")
      ->check(CLI::Range(1, 4000));
  AddSharedMemoryFlag(app, options.shared_memory);
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  return Run(options);
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
