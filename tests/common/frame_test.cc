// Frame headers on the wire, and the cutting of layers into frames. The bytes
// of a header are fixed by the protocol's version. BadFieldTest has a row for
// each field that a decoder must refuse.

#include "common/protocol/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/base/version.h"
#include "common/compute/frame_halves.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

using HeaderBytes = std::array<uint8_t, kFrameHeaderBytes>;

FrameHeader SomeHeader() {
  FrameHeader header;
  header.kind = FrameKind::kResult;
  header.wire = WireType::kFloat32;
  header.job = 0x0123456789abcdef;
  header.epoch = 5;
  header.layer = 3;
  header.chunk = 2;
  header.part = 6;
  header.round = kInitialRound;
  header.sender = PeerId::Shard(1);
  header.offset = 65536;
  header.payload_bytes = 262140;
  header.payload_crc = 0xe3069283;
  return header;
}

// The bytes of SomeHeader in this version of the protocol. Changing them
// requires a new version.
constexpr HeaderBytes kGolden = {
    0x4e, 0x52, 0x53, 0x31,                          // "NRS1"
    0x13,                                            // version
    0x04,                                            // kind: result
    0x01,                                            // wire: float32
    0x06,                                            // part
    0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,  // job
    0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // epoch
    0x03, 0x00, 0x00, 0x00,                          // layer
    0x02, 0x00, 0x00, 0x00,                          // chunk
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,  // round: -1
    0x01, 0x00, 0x00, 0x80,                          // sender: shard 1
    0x00, 0x00, 0x01, 0x00,                          // offset
    0xfc, 0xff, 0x03, 0x00,                          // payload length
    0x83, 0x92, 0x06, 0xe3,                          // payload CRC-32C
    0x00, 0x00,                                      // exponent
    0x00, 0x00,                                      // frames
    0xd1, 0x46, 0x40, 0x1b,  // CRC-32C of all bytes above
};

HeaderBytes Encode(const FrameHeader& header) {
  HeaderBytes bytes;
  bytes.fill(0xee);  // The encoder must overwrite all old contents.
  EncodeFrameHeader(header, bytes.data());
  return bytes;
}

void Seal(HeaderBytes& bytes) {
  const uint32_t crc = Crc32c(bytes.data(), 60);
  std::memcpy(bytes.data() + 60, &crc, sizeof(crc));
}

TEST(FrameHeaderTest, HeaderHasTheBytesOfVersion19) {
  ASSERT_EQ(kProtocolVersion, 19u) << "a new version needs new golden bytes";
  EXPECT_EQ(Encode(SomeHeader()), kGolden);
  EXPECT_EQ(*DecodeFrameHeader(kGolden), SomeHeader());
}

FrameHeader RandomHeader(Random& random) {
  FrameHeader header;
  header.kind = static_cast<FrameKind>(1 + random.Below(8));
  header.wire = static_cast<WireType>(random.Below(4));
  header.job = random.Next();
  header.epoch = random.Next();
  header.layer = static_cast<uint32_t>(random.Next());
  header.chunk = static_cast<uint32_t>(random.Next());
  header.part = static_cast<uint8_t>(random.Next());
  header.round = static_cast<int64_t>(random.Next());
  const int rank = static_cast<int>(random.Below(kRanksMax));
  header.sender =
      random.Chance(0.5) ? PeerId::Worker(rank) : PeerId::Shard(rank);
  header.offset = static_cast<uint32_t>(random.Next());
  header.payload_bytes =
      static_cast<uint32_t>(random.Below(kFramePayloadBytesMax + 1));
  header.payload_crc = static_cast<uint32_t>(random.Next());
  return header;
}

TEST(FrameHeaderTest, EncodedHeadersAreDecoded) {
  for (const uint64_t seed : TestSeeds(1000)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    const FrameHeader header = RandomHeader(random);
    ASSERT_EQ(*DecodeFrameHeader(Encode(header)), header);
  }
}

TEST(FrameHeaderTest, ExtremeValuesAreDecoded) {
  FrameHeader header = SomeHeader();
  header.sender = PeerId::Worker(kRanksMax - 1);
  header.part = 255;
  header.round = std::numeric_limits<int64_t>::min();
  header.offset = std::numeric_limits<uint32_t>::max();
  header.payload_bytes = kFramePayloadBytesMax;
  EXPECT_EQ(*DecodeFrameHeader(Encode(header)), header);
}

TEST(FrameHeaderTest, EachFlippedBitIsRefused) {
  for (int bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    HeaderBytes bytes = kGolden;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_EQ(DecodeFrameHeader(bytes).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "bit " << bit;
  }
}

TEST(FrameHeaderTest, OtherLengthsAreRefused) {
  const std::vector<uint8_t> bytes(2 * kFrameHeaderBytes, 0);
  for (const size_t length : {0, 1, 63, 65, 128}) {
    EXPECT_THAT(DecodeFrameHeader(absl::MakeSpan(bytes).first(length)).status(),
                IsInvalidArgument("length is " + std::to_string(length)));
  }
}

// Fields that our encoder never writes, under a correct checksum.
struct BadField {
  const char* name;
  int at;
  std::vector<uint8_t> bytes;
  const char* message;
};

class BadFieldTest : public testing::TestWithParam<BadField> {};

TEST_P(BadFieldTest, BadFieldIsRefusedWithItsValue) {
  HeaderBytes bytes = kGolden;
  std::memcpy(bytes.data() + GetParam().at, GetParam().bytes.data(),
              GetParam().bytes.size());
  Seal(bytes);
  EXPECT_THAT(DecodeFrameHeader(bytes).status(),
              IsInvalidArgument(GetParam().message));
}

const BadField kBadFieldRows[] = {
    {"Magic", 0, {'N', 'R', 'S', '2'}, "magic is 844321358"},
    {"OlderVersion", 4, {18}, "protocol version is 18, expected 19"},
    {"NewerVersion", 4, {20}, "protocol version is 20, expected 19"},
    {"KindZero", 5, {0}, "kind is 0"},
    {"KindAfterTheLast", 5, {21}, "kind is 21"},
    {"KindHighest", 5, {255}, "kind is 255"},
    {"WireAfterTheLast", 6, {4}, "wire type is 4"},
    {"WireHighest", 6, {255}, "wire type is 255"},
    {"ExponentOfFloat32", 56, {1, 0}, "exponent is 1 with wire type 1"},
    {"ExponentLastByte", 57, {255}, "exponent is -256"},
    {"WorkerRank", 40, {0, 0, 1, 0}, "sender is 65536"},
    {"ShardRank", 40, {0, 0, 1, 128}, "sender is 65536"},
    {"HighestRank", 40, {255, 255, 255, 127}, "sender is 2147483647"},
    {"PayloadLength",
     48,
     {1, 0, 4, 0},
     "payload length is 262145, expected at most 262144"},
    {"PayloadLengthHighest",
     48,
     {255, 255, 255, 255},
     "payload length is 4294967295"},
};

INSTANTIATE_TEST_SUITE_P(All, BadFieldTest, testing::ValuesIn(kBadFieldRows),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

TEST(FrameHeaderTest, WrongChecksumIsRefusedWithBothValues) {
  HeaderBytes bytes = kGolden;
  const uint32_t wrong = 12345;
  std::memcpy(bytes.data() + 60, &wrong, sizeof(wrong));
  const std::string message(DecodeFrameHeader(bytes).status().message());
  EXPECT_THAT(message, HasSubstr("checksum is 12345, expected " +
                                 std::to_string(Crc32c(kGolden.data(), 60))));
}

TEST(CheckPayloadTest, PayloadOfTheHeaderIsAccepted) {
  std::string digits = "123456789";
  FrameHeader header = SomeHeader();
  header.payload_bytes = 9;
  EXPECT_TRUE(CheckPayload(header, Buffer::View(digits.data(), 9)).ok());
  header.payload_bytes = 0;
  header.payload_crc = 0;
  EXPECT_TRUE(CheckPayload(header, Buffer()).ok());
}

TEST(CheckPayloadTest, OtherLengthIsRefusedWithBothValues) {
  std::string digits = "1234567890";
  FrameHeader header = SomeHeader();
  header.payload_bytes = 9;
  EXPECT_THAT(CheckPayload(header, Buffer::View(digits.data(), 10)),
              IsInvalidArgument("payload has 10 bytes, the header says 9"));
}

TEST(CheckPayloadTest, OtherBytesAreRefusedWithChecksumsAndFrame) {
  std::string digits = "12345678X";
  FrameHeader header = SomeHeader();
  header.payload_bytes = 9;
  const auto status = CheckPayload(header, Buffer::View(digits.data(), 9));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("the header says e3069283"));
  EXPECT_THAT(message, HasSubstr("result layer=3 chunk=2 part=6 round=-1"));
  EXPECT_THAT(message, HasSubstr("from shard 1"));
}

TEST(DescribeFrameTest, DescriptionNamesTheUsefulFields) {
  FrameHeader header = SomeHeader();
  header.kind = FrameKind::kContribution;
  header.chunk = 0;
  header.part = 0;
  header.round = 12;
  header.payload_bytes = 262144;
  header.sender = PeerId::Worker(1);
  EXPECT_EQ(DescribeFrame(header),
            "contribution layer=3 chunk=0 part=0 round=12 offset=65536 "
            "bytes=262144 from worker 1");
}

TEST(FrameKindTest, KindsHaveDistinctNames) {
  std::vector<std::string> names;
  for (int kind = 1; kind <= 15; ++kind) {
    names.emplace_back(FrameKindName(static_cast<FrameKind>(kind)));
  }
  EXPECT_THAT(names, testing::ElementsAre(
                         "hello", "refusal", "contribution", "result", "pull",
                         "factors", "pull-round", "owned", "aggregate", "copy",
                         "have", "vote", "verdict", "sum", "mean"));
}

TEST(FrameCountTest, LayersAreCutAtFullFrames) {
  const struct {
    int64_t elements;
    std::vector<int64_t> frames;  // Number of elements of each frame.
  } kCases[] = {
      {0, {}},
      {1, {1}},
      {65535, {65535}},
      {65536, {65536}},
      {65537, {65536, 1}},
      {131072, {65536, 65536}},
      {524288, std::vector<int64_t>(8, 65536)},
  };
  for (const auto& c : kCases) {
    std::vector<int64_t> frames;
    for (int64_t i = 0; i < FrameCount(c.elements); ++i) {
      frames.push_back(FrameGrid(c.elements).Length(i));
    }
    EXPECT_EQ(frames, c.frames) << c.elements;
  }
}

struct IndexCase {
  int64_t elements;
  uint32_t offset;
  uint32_t payload_bytes;
  int64_t index;  // -1 if the offset must be refused.
};

class FrameIndexTest : public testing::TestWithParam<IndexCase> {};

TEST_P(FrameIndexTest, OffsetGivesTheIndexOrIsRefused) {
  const IndexCase& c = GetParam();
  FrameHeader header = SomeHeader();
  header.offset = c.offset;
  header.payload_bytes = c.payload_bytes;
  const auto index = FrameIndex(header, c.elements);
  if (c.index >= 0) {
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(*index, c.index);
    return;
  }
  EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(index.status().message());
  EXPECT_THAT(message, HasSubstr("offset=" + std::to_string(c.offset)));
  EXPECT_THAT(message, HasSubstr("bytes=" + std::to_string(c.payload_bytes)));
}

constexpr IndexCase kIndexCases[] = {
    {0, 0, 0, -1},
    {0, 0, 4, -1},
    {1, 0, 4, 0},
    {1, 0, 0, -1},
    {1, 0, 3, -1},
    {1, 0, 8, -1},
    {1, 1, 4, -1},
    {1, 65536, 4, -1},
    {65535, 0, 262140, 0},
    {65535, 0, 262144, -1},
    {65535, 65535, 4, -1},
    {65535, 65536, 4, -1},
    {65536, 0, 262144, 0},
    {65536, 0, 262140, -1},
    {65536, 65536, 0, -1},
    {65536, 32768, 131072, -1},
    {65537, 0, 262144, 0},
    {65537, 65536, 4, 1},
    {65537, 65536, 262144, -1},
    {65537, 0, 4, -1},
    {65537, 131072, 4, -1},
    {65537, 65537, 4, -1},
    // The offset has 32 bits; a matrix may have more elements than that.
    {int64_t{1} << 40, 0xffff0000, 262144, 65535},
    {int64_t{1} << 32, 0xffff0000, 262144, 65535},
    {int64_t{1} << 32, 0xffffffff, 262144, -1},
};

INSTANTIATE_TEST_SUITE_P(Table, FrameIndexTest, testing::ValuesIn(kIndexCases));

// Bytes 6 and 56 hold the wire type and its exponent.
TEST(FrameHeaderTest, Float16HasAnExponentInItsRange) {
  for (const int exponent :
       {kHalfExponentMin - 1, kHalfExponentMin, -1, 0, 1, kHalfExponentMax,
        kHalfExponentMax + 1, 255, 256}) {
    HeaderBytes bytes = kGolden;
    bytes[6] = static_cast<uint8_t>(WireType::kFloat16);
    const auto stored = static_cast<int16_t>(exponent);
    std::memcpy(bytes.data() + 56, &stored, sizeof(stored));
    Seal(bytes);
    const auto header = DecodeFrameHeader(bytes);
    if (exponent < kHalfExponentMin || exponent > kHalfExponentMax) {
      EXPECT_THAT(std::string(header.status().message()),
                  HasSubstr("exponent is " + std::to_string(exponent)));
      continue;
    }
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->exponent, exponent);
    HeaderBytes again;
    EncodeFrameHeader(*header, again.data());
    EXPECT_EQ(again, bytes);
  }
}

TEST(FrameIndexTest, SixteenBitFramesAreCutAtTheSameElements) {
  FrameHeader header = SomeHeader();
  header.wire = WireType::kBfloat16;
  header.offset = 65536;
  header.payload_bytes = 2;
  EXPECT_EQ(*FrameIndex(header, 65537), 1);
  header.payload_bytes = 4;
  EXPECT_FALSE(FrameIndex(header, 65537).ok());
  header.offset = 0;
  header.payload_bytes = 131072;
  EXPECT_EQ(*FrameIndex(header, 65537), 0);
  header.payload_bytes = 262144;
  EXPECT_FALSE(FrameIndex(header, 65537).ok());
}

}  // namespace
}  // namespace nereus
