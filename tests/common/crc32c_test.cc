#include "common/base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

// Test vectors of RFC 3720, appendix B.4, and the check value of CRC
// catalogues.
TEST(Crc32cTest, ChecksumsMatchKnownValues) {
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  const std::string descending(ascending.rbegin(), ascending.rend());
  const struct {
    const char* name;
    std::string bytes;
    uint32_t crc;
  } kCases[] = {
      {"nothing", "", 0x00000000},
      {"32 zeros", std::string(32, '\0'), 0x8a9136aa},
      {"32 ones", std::string(32, '\xff'), 0x62a8ab43},
      {"0 to 31", ascending, 0x46dd794e},
      {"31 to 0", descending, 0x113fdb5c},
      {"digits", "123456789", 0xe3069283},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Crc32c(c.bytes.data(), c.bytes.size()), c.crc) << c.name;
  }
}

TEST(Crc32cTest, EmptyInputMayBeNull) {
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  EXPECT_EQ(ExtendCrc32c(0xe3069283, nullptr, 0), 0xe3069283u);
}

TEST(Crc32cTest, PiecesExtendToTheWhole) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::vector<uint8_t> bytes(random.Below(5000));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
    uint32_t crc = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = random.Below(bytes.size() - at + 1);
      crc = ExtendCrc32c(crc, bytes.data() + at, piece);
      at += piece;
    }
    EXPECT_EQ(crc, Crc32c(bytes.data(), bytes.size()));
  }
}

// Flips each single bit, at several alignments of the bytes.
TEST(Crc32cTest, FlippedBitChangesTheChecksum) {
  std::vector<uint8_t> memory(8 + 67, 0x5a);
  for (size_t start = 0; start < 8; ++start) {
    uint8_t* const bytes = memory.data() + start;
    const uint32_t crc = Crc32c(bytes, 67);
    for (int bit = 0; bit < 67 * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      EXPECT_NE(Crc32c(bytes, 67), crc) << "bit " << bit;
      bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    EXPECT_EQ(Crc32c(bytes, 67), crc);
  }
}

}  // namespace
}  // namespace nereus
