#include "tests/testing/machine_harness.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/driver/arithmetic.h"
#include "common/driver/wire_values.h"
#include "common/protocol/action_visitor.h"

namespace nereus {
namespace {

constexpr uint64_t kJobId = 77;

int64_t BytesOf(size_t floats) {
  return static_cast<int64_t>(floats * sizeof(float));
}

Frame Encoded(Frame frame) {
  EncodePayload(frame);
  return frame;
}

}  // namespace

LayerSpec VectorLayer(std::string name, int64_t elements) {
  return {std::move(name), LayerKind::kVector, 1, elements, elements, 1};
}

LayerSpec FactorLayer(std::string name, int64_t m, int64_t n, bool bias,
                      int64_t rows) {
  return {std::move(name),
          LayerKind::kFullyConnected,
          m,
          n,
          m * n + (bias ? m : 0),
          rows,
          true};
}

JobPtr TestJob(int workers, int shards, std::vector<LayerSpec> layers,
               JobOptions options, Scheme scheme, WireType wire) {
  std::vector<Route> routes;
  for (const LayerSpec& layer : layers) {
    routes.push_back(
        {SupportsScheme(layer, scheme) ? scheme : Scheme::kServer, wire});
  }
  Job parts;
  parts.id = kJobId;
  parts.epoch = kFirstEpoch;
  parts.workers = FirstWorkers(workers);
  parts.layers = std::move(layers);
  parts.routes = std::move(routes);
  parts.options = options;
  if (options.chunk_bytes == kChunkAuto) {
    parts.options.chunk_bytes = kChunkBytesMax;
  }
  auto job = MakeJob(std::move(parts), shards);
  NEREUS_CHECK(job.ok()) << job.status();
  return *std::move(job);
}

JobPtr EpochAfter(const Job& job, const std::function<void(Job&)>& edit) {
  Job next = job;
  ++next.epoch;
  if (edit) edit(next);
  // An epoch begins no earlier than its last worker.
  if (!next.workers.empty()) {
    next.history.first_step =
        std::max(next.history.first_step, next.workers.back().first_step);
  }
  auto made = MakeJob(std::move(next), job.shards());
  NEREUS_CHECK(made.ok()) << made.status();
  return *std::move(made);
}

Buffer FloatBuffer(const std::vector<float>& values) {
  Buffer buffer = Buffer::Allocate(BytesOf(values.size()));
  if (!values.empty()) {
    std::memcpy(buffer.data(), values.data(), values.size() * sizeof(float));
  }
  return buffer;
}

std::vector<float> FloatsOf(const Buffer& buffer) {
  std::vector<float> values(static_cast<size_t>(buffer.float_count()));
  if (!values.empty()) {
    std::memcpy(values.data(), buffer.data(), values.size() * sizeof(float));
  }
  return values;
}

std::vector<float> IntegerValues(int64_t count, int64_t salt) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 31 + salt * 17) % 1009 - 500);
  }
  return values;
}

std::vector<Frame> FramesOf(const Job& job, PeerId sender, FrameKind kind,
                            int layer, int64_t chunk, int64_t round,
                            const std::vector<float>& values, uint8_t part) {
  std::vector<Frame> frames;
  FrameHeader header = MakeHeader(job, sender, kind, layer, chunk, round);
  header.part = part;
  const bool of_chunk = kind == FrameKind::kContribution ||
                        kind == FrameKind::kResult ||
                        kind == FrameKind::kAggregate;
  const auto count = std::ssize(values);
  const FrameGrid grid =
      of_chunk ? job.GridOf(job.placement.layer_chunks(layer)[chunk])
               : FrameGrid(count);
  CutIntoFrames(job, header, grid, FloatBuffer(values), [&](Frame frame) {
    EncodePayload(frame);
    frame.header.payload_crc = Crc32c(
        frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
    frames.push_back(std::move(frame));
  });
  return frames;
}

Frame PullFrame(const Job& job, PeerId sender, FrameKind kind, int layer,
                int64_t chunk, int64_t round) {
  return {MakeHeader(job, sender, kind, layer, chunk, round), Buffer()};
}

bool Effects::Sent::IsFor(PeerId peer) const {
  if (to.has_value()) return peer == *to;
  return peer.role == Role::kWorker &&
         absl::c_linear_search(workers, peer.rank);
}

Effects Carry(Outbox& out) {
  Effects effects;
  const ActionVisitor carry_out{
      [](const ArithmeticAction auto& action) { ExecuteArithmetic(action); },
      [](const CheckingAction auto& checking) {
        // A driver ends the job here. No test of a machine expects that.
        const BadValue found = ExecuteArithmetic(checking);
        NEREUS_CHECK(found.index < 0) << "value " << found.index;
      },
      [&](const ChecksumValues& sum) {
        (sum.sampled.has_value() ? effects.samples : effects.checksums)
            .push_back(sum);
      },
      [&](const SendFrame& send) {
        effects.sent.push_back({send.to, Encoded(send.frame)});
      },
      [&](const BroadcastFrame& all) {
        effects.sent.push_back({std::nullopt, Encoded(all.frame), *all.to});
      },
      [&](const LayerDone& done) { effects.done.push_back(done); },
      [&](const PartDone& part) { effects.parts.push_back(part); },
      [](const ProbeAnswered&) {},
      [&](const SendHeartbeat&) { ++effects.heartbeats; },
      [&](const SaveCheckpoint& save) { effects.saves.push_back(save); },
      [&](const LoadCheckpoint& load) { effects.loads.push_back(load); },
      [&](const SendMessage& send) {
        effects.messages.push_back(send.message);
      },
      [&](const FollowEpoch& follow) {
        effects.followed.push_back(follow.start);
      },
      [&](const EndMembership& end) { effects.ended.push_back(end.outcome); },
  };
  for (const Action& action : out.actions()) std::visit(carry_out, action);
  out.Clear();
  return effects;
}

absl::StatusOr<Delivery> Deliver(Machine& machine, PeerId from,
                                 const Frame& frame) {
  const absl::StatusOr<Landing> landing = machine.OnHeader(from, frame.header);
  if (!landing.ok()) return landing.status();
  Delivery delivery{landing->kind, {}};
  if (landing->kind == Landing::Kind::kDiscard ||
      landing->kind == Landing::Kind::kWait) {
    return delivery;
  }
  // A frame without a checksum has 0 in this field.
  NEREUS_CHECK(frame.header.payload_crc == 0 ||
               CheckPayload(frame.header, frame.payload).ok())
      << DescribeFrame(frame.header) << ": a wrong checksum";
  const bool scratch = landing->kind == Landing::Kind::kScratch;
  const bool decodes = !scratch && IsEncoded(frame.header);
  const int64_t bytes =
      decodes ? FloatBytes(frame.header) : frame.payload.bytes();
  Frame received{frame.header,
                 scratch ? Buffer::Allocate(bytes) : landing->place};
  NEREUS_CHECK(received.payload.bytes() == bytes)
      << DescribeFrame(frame.header) << " lands in " << received.payload.bytes()
      << " bytes";
  if (decodes) {
    DecodePayload(frame.header, frame.payload, received.payload);
  } else if (bytes > 0) {
    std::memcpy(received.payload.data(), frame.payload.data(),
                static_cast<size_t>(bytes));
  }
  Outbox out;
  machine.OnFrame(from, received, out);
  delivery.effects = Carry(out);
  // Bytes of 0xff are NaN in every wire type.
  if (scratch && bytes > 0) {
    std::memset(received.payload.data(), 0xff, static_cast<size_t>(bytes));
  }
  return delivery;
}

Effects DeliverAll(Machine& machine, PeerId from,
                   const std::vector<Frame>& frames) {
  Effects all;
  for (const Frame& frame : frames) {
    absl::StatusOr<Delivery> delivery = Deliver(machine, from, frame);
    NEREUS_CHECK(delivery.ok()) << delivery.status();
    for (auto& sent : delivery->effects.sent) {
      all.sent.push_back(std::move(sent));
    }
    for (const LayerDone& done : delivery->effects.done) {
      all.done.push_back(done);
    }
    for (const PartDone& part : delivery->effects.parts) {
      all.parts.push_back(part);
    }
    for (SaveCheckpoint& save : delivery->effects.saves) {
      all.saves.push_back(std::move(save));
    }
    for (MemberMessage& message : delivery->effects.messages) {
      all.messages.push_back(std::move(message));
    }
    all.heartbeats += delivery->effects.heartbeats;
  }
  return all;
}

std::vector<float> ValuesIn(const std::vector<Effects::Sent>& sent,
                            FrameKind kind, int layer, int64_t chunk,
                            int64_t round, int64_t elements, uint8_t part) {
  std::vector<float> values(static_cast<size_t>(elements),
                            std::numeric_limits<float>::quiet_NaN());
  for (const Effects::Sent& each : sent) {
    const FrameHeader& header = each.frame.header;
    if (header.kind != kind || header.layer != static_cast<uint32_t>(layer) ||
        header.chunk != chunk || header.round != round || header.part != part) {
      continue;
    }
    const std::vector<float> piece = FloatsOf(each.frame.payload);
    NEREUS_CHECK(header.offset + piece.size() <= values.size())
        << DescribeFrame(header) << " of " << elements << " elements";
    absl::c_copy(piece, values.begin() + header.offset);
  }
  return values;
}

std::vector<Effects::Sent> SentTo(const std::vector<Effects::Sent>& sent,
                                  PeerId peer) {
  std::vector<Effects::Sent> found;
  for (const Effects::Sent& each : sent) {
    if (each.to == peer) found.push_back(each);
  }
  return found;
}

}  // namespace nereus
