// Hostile gRPC messages where frames are expected. Two seconds by default;
// longer:
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/grpc_frames_fuzz_test
//
// and best from a build with --config=asan or ubsan. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/transport/grpc_frames.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

// Where a header has them: docs/wire_format.md.
constexpr size_t kPayloadBytesAt = 48;
constexpr size_t kPayloadCrcAt = 52;
constexpr size_t kHeaderCrcAt = 60;

void Store(std::string& bytes, size_t at, uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

std::string SoundMessage(Random& random) {
  const std::string payload =
      RandomBytes(random, random.Chance(0.01) ? uint64_t{kFramePayloadBytesMax}
                                              : random.Below(200));
  FrameHeader header;
  header.kind = static_cast<FrameKind>(1 + random.Below(6));
  header.wire = static_cast<WireType>(random.Below(4));
  header.job = EdgeNumber(random);
  header.layer = static_cast<uint32_t>(EdgeNumber(random));
  header.round = static_cast<int64_t>(EdgeNumber(random));
  header.sender = PeerId::Worker(static_cast<int>(random.Below(kRanksMax)));
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_crc = Crc32c(payload.data(), payload.size());
  std::string bytes(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(header, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes + payload;
}

// Changes a message, and often makes its header fit the change.
void MutateMessage(Random& random, std::string& bytes) {
  Mutate(random, bytes);
  if (bytes.size() < size_t{kFrameHeaderBytes}) return;
  if (random.Chance(0.05)) {
    Store(bytes, kPayloadBytesAt, static_cast<uint32_t>(EdgeNumber(random)));
  } else if (random.Chance(0.7)) {
    Store(bytes, kPayloadBytesAt,
          static_cast<uint32_t>(bytes.size() - kFrameHeaderBytes));
  }
  if (random.Chance(0.9)) {
    Store(bytes, kHeaderCrcAt, Crc32c(bytes.data(), kHeaderCrcAt));
  }
}

// The bytes in pieces as they might arrive, some of them empty.
grpc::ByteBuffer CutIntoSlices(Random& random, const std::string& bytes) {
  if (bytes.empty() && random.Chance(0.5)) return grpc::ByteBuffer();
  std::vector<grpc::Slice> slices;
  const uint64_t longest = 1 + random.Below(bytes.size() + 1);
  for (size_t at = 0; at < bytes.size();) {
    const std::string piece = bytes.substr(at, random.Below(longest + 1));
    slices.emplace_back(piece.data(), piece.size());
    at += piece.size();
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// How many frames are to be read from a message, 0 if it is wrong: the
// definition, without slices.
size_t SoundFrames(const std::string& bytes) {
  size_t frames = 0;
  for (size_t at = 0; at == 0 || at < bytes.size(); ++frames) {
    if (bytes.size() < at + size_t{kFrameHeaderBytes}) return 0;
    const auto header = DecodeFrameHeader(
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()) + at,
                            size_t{kFrameHeaderBytes}));
    if (!header.ok()) return 0;
    at += size_t{kFrameHeaderBytes} + header->payload_bytes;
    if (at > bytes.size()) return 0;
  }
  return frames;
}

void CheckRefused(const absl::Status& status) {
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_FALSE(status.message().empty());
}

// Headers and payloads are those of the message.
void CheckAccepted(const IncomingMessage& message, const std::string& bytes) {
  std::string again;
  for (size_t frame = 0; frame < message.frames(); ++frame) {
    std::string header(kFrameHeaderBytes, '\xee');
    EncodeFrameHeader(message.header(frame),
                      reinterpret_cast<uint8_t*>(header.data()));
    again += header;
    // Memory of that very size, so that a sanitizer sees writes beyond.
    std::vector<uint8_t> payload(message.header(frame).payload_bytes);
    message.CopyPayload(frame, payload.data());
    again.append(payload.begin(), payload.end());
  }
  ASSERT_TRUE(again == bytes);
}

void CheckSmallFrame(Random& random, const grpc::ByteBuffer& message,
                     const std::string& bytes) {
  const auto payload_bytes_max = random.Chance(0.5)
                                     ? int64_t{2048}
                                     : static_cast<int64_t>(random.Below(200));
  const auto frame = ReadSmallFrame(message, payload_bytes_max);
  bool expected = SoundFrames(bytes) == 1;
  if (expected) {
    uint32_t crc = 0;
    std::memcpy(&crc, bytes.data() + kPayloadCrcAt, sizeof(crc));
    const size_t payload_bytes = bytes.size() - kFrameHeaderBytes;
    expected = payload_bytes <= static_cast<size_t>(payload_bytes_max) &&
               crc == Crc32c(bytes.data() + kFrameHeaderBytes, payload_bytes);
  }
  ASSERT_EQ(frame.ok(), expected) << frame.status();
  if (!frame.ok()) return CheckRefused(frame.status());
  const std::string payload(frame->payload.data(),
                            frame->payload.data() + frame->payload.bytes());
  ASSERT_TRUE(payload == bytes.substr(kFrameHeaderBytes));
}

TEST(GrpcFramesFuzzTest, AMessageIsReadIfAndOnlyIfItIsFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      std::string bytes = SoundMessage(random);
      while (random.Chance(0.4)) bytes += SoundMessage(random);
      if (random.Chance(0.05)) bytes = RandomBytes(random, random.Below(100));
      if (random.Chance(0.7)) MutateMessage(random, bytes);
      const grpc::ByteBuffer message = CutIntoSlices(random, bytes);
      const auto frame = IncomingMessage::Read(message);
      ASSERT_EQ(frame.ok() ? frame->frames() : 0, SoundFrames(bytes))
          << frame.status();
      if (frame.ok()) {
        ++accepted;
        CheckAccepted(*frame, bytes);
      } else {
        CheckRefused(frame.status());
      }
      CheckSmallFrame(random, message, bytes);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

}  // namespace
}  // namespace nereus
