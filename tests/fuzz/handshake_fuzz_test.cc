// Feeds hostile first and last frames of a data connection to their parsers.
// Each test runs for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/handshake_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "common/transport/handshake.h"
#include "proto/data.pb.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

constexpr size_t kBuildBytesMax = 256;  // Limit in proto/data.proto.

bool IsPrintable(const std::string& text) {
  return absl::c_all_of(text, [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

void SetPeer(Random& random, v1::Member& member) {
  member.set_role(static_cast<v1::Member::Role>(
      random.Chance(0.9) ? 1 + random.Below(2) : EdgeNumber(random)));
  member.set_rank(static_cast<int32_t>(
      random.Chance(0.9) ? random.Below(kRanksMax) : EdgeNumber(random)));
}

std::string SomeHello(Random& random) {
  v1::DataHello hello;
  hello.set_protocol_version(static_cast<uint32_t>(EdgeNumber(random)));
  hello.set_build(std::string(random.Below(300), 'b'));
  hello.set_job(EdgeNumber(random));
  hello.set_epoch(EdgeNumber(random));
  hello.set_model_signature(EdgeNumber(random));
  SetPeer(random, *hello.mutable_self());
  SetPeer(random, *hello.mutable_intended());
  hello.set_incarnation(EdgeNumber(random));
  return hello.SerializeAsString();
}

// 899 bytes of an unknown field. A hello with it is slightly above or below the
// limit.
std::string UnknownField() { return "\x7a\x80\x07" + std::string(0x380, 'x'); }

bool IsSound(const v1::Member& member) {
  return (member.role() == v1::Member::ROLE_WORKER ||
          member.role() == v1::Member::ROLE_SHARD) &&
         member.rank() >= 0 && member.rank() < kRanksMax;
}

// Makes a frame on `exact`. The memory has exactly the payload's size, so that
// a sanitizer detects reads beyond it.
Frame FrameOf(FrameKind kind, std::vector<uint8_t>& exact) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.payload_bytes = static_cast<uint32_t>(exact.size());
  frame.payload = Buffer::View(exact.data(), std::ssize(exact));
  return frame;
}

void ExpectSame(const Hello& a, const Hello& b) {
  ASSERT_EQ(a.protocol_version, b.protocol_version);
  ASSERT_EQ(a.build, b.build);
  ASSERT_EQ(a.job, b.job);
  ASSERT_EQ(a.epoch, b.epoch);
  ASSERT_EQ(a.model_signature, b.model_signature);
  ASSERT_EQ(a.self, b.self);
  ASSERT_EQ(a.incarnation, b.incarnation);
  ASSERT_EQ(a.intended, b.intended);
}

void CheckAccepted(Hello hello, const v1::DataHello& message) {
  ASSERT_LE(hello.build.size(), kBuildBytesMax);
  ASSERT_TRUE(IsPrintable(hello.build));
  ASSERT_EQ(hello.job, message.job());
  ASSERT_EQ(hello.epoch, message.epoch());
  ASSERT_EQ(hello.model_signature, message.model_signature());
  ASSERT_EQ(hello.self.rank, message.self().rank());
  ASSERT_EQ(hello.incarnation, message.incarnation());
  ASSERT_EQ(hello.intended.rank, message.intended().rank());
  // A build that is cut at its limit may end within a character. Then it is no
  // valid text.
  if (message.build().size() > kBuildBytesMax) hello.build.clear();
  const Frame again = HelloFrame(hello);
  ASSERT_LE(again.payload.bytes(), kHelloBytesMax);
  const auto read = ReadHello(again);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, hello);
}

TEST(HandshakeFuzzTest, OnlySoundHellosAreAccepted) {
  // The Protobuf parser refuses text that is not UTF-8, and would log each
  // case.
  const google::protobuf::LogSilencer silencer;
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      std::string bytes = SomeHello(random);
      if (random.Chance(0.05)) bytes = RandomBytes(random, random.Below(64));
      if (random.Chance(0.5)) Mutate(random, bytes);
      if (random.Chance(0.1)) bytes += UnknownField();
      const auto kind = random.Chance(0.95)
                            ? FrameKind::kHello
                            : static_cast<FrameKind>(1 + random.Below(6));
      std::vector<uint8_t> exact(bytes.begin(), bytes.end());
      const auto hello = ReadHello(FrameOf(kind, exact));

      v1::DataHello message;
      const bool sound = kind == FrameKind::kHello &&
                         bytes.size() <= size_t{kHelloBytesMax} &&
                         message.ParseFromString(bytes) &&
                         IsSound(message.self()) && IsSound(message.intended());
      ASSERT_EQ(hello.ok(), sound) << hello.status();
      if (!sound) {
        ASSERT_EQ(hello.status().code(), absl::StatusCode::kInvalidArgument);
        const std::string why(hello.status().message());
        ASSERT_FALSE(why.empty());
        ASSERT_LT(why.size(), 500u);
        ASSERT_TRUE(IsPrintable(why));
        continue;
      }
      ++accepted;
      CheckAccepted(*hello, message);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

TEST(HandshakeFuzzTest, ReasonFitsALineOfALog) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      std::string bytes = random.Chance(0.5)
                              ? NotReadyReason("no identity yet")
                              : RandomBytes(random, random.Below(5000));
      Mutate(random, bytes);
      std::vector<uint8_t> exact(bytes.begin(), bytes.end());
      const std::string reason =
          ReadRefusal(FrameOf(FrameKind::kRefusal, exact));
      ASSERT_EQ(reason.size(),
                std::min(bytes.size(), size_t{kRefusalBytesMax}));
      ASSERT_TRUE(IsPrintable(reason));
      const absl::Status status = RefusalStatus(reason);
      ASSERT_EQ(status.ok(), bytes.empty());
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status) ||
                  absl::IsFailedPrecondition(status))
          << status;

      // A reason that is passed on arrives unchanged.
      const Frame again = RefusalFrame(PeerId::Shard(0), reason);
      ASSERT_LE(again.payload.bytes(), kRefusalBytesMax);
      ASSERT_EQ(ReadRefusal(again), reason);
    }
  }
  EXPECT_GT(budget.runs(), 0u);
}

}  // namespace
}  // namespace nereus
