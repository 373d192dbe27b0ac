#include "tests/testing/mutation.h"

#include <algorithm>

namespace nereus {
namespace {

void MutateOnce(Random& random, std::string& bytes) {
  if (bytes.empty()) {
    bytes = RandomBytes(random, 1 + random.Below(4));
    return;
  }
  const uint64_t at = random.Below(bytes.size());
  const uint64_t length =
      std::min<uint64_t>(1 + random.Below(8), bytes.size() - at);
  switch (random.Below(7)) {
    case 0:
      bytes[at] ^= static_cast<char>(1 << random.Below(8));
      return;
    case 1:
      bytes[at] = static_cast<char>(random.Next());
      return;
    case 2: {
      constexpr char kExtremes[] = {'\0', '\x7f', '\x80', '\xff', '\n', ','};
      bytes[at] = kExtremes[random.Below(sizeof(kExtremes))];
      return;
    }
    case 3:
      bytes.insert(at, RandomBytes(random, length));
      return;
    case 4:
      bytes.erase(at, length);
      return;
    case 5:
      bytes.insert(at, bytes.substr(at, length));
      return;
    default:
      if (random.Chance(0.2)) bytes.resize(at);
  }
}

}  // namespace

void Mutate(Random& random, std::string& bytes) {
  for (uint64_t i = random.Below(6); i > 0; --i) MutateOnce(random, bytes);
}

std::string RandomBytes(Random& random, uint64_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Next());
  return bytes;
}

uint64_t EdgeNumber(Random& random) {
  switch (random.Below(4)) {
    case 0:
      return random.Below(8);
    case 1:
      return (uint64_t{1} << random.Below(64)) + random.Below(3) - 1;
    case 2:
      return uint64_t{0} - random.Below(4);
    default:
      return random.Next();
  }
}

void MutateHeader(Random& random, FrameHeader& header) {
  for (uint64_t i = random.Below(3); i > 0; --i) {
    const uint64_t value = EdgeNumber(random);
    const auto word = static_cast<uint32_t>(value);
    switch (random.Below(11)) {
      case 0:
        header.kind = static_cast<FrameKind>(1 + value % 15);
        break;
      case 1:
        header.wire = static_cast<WireType>(value % 4);
        break;
      case 2:
        header.job = value;
        break;
      case 3:
        header.epoch = value;
        break;
      case 4:
        header.layer = word;
        break;
      case 5:
        header.chunk = word;
        break;
      case 6:
        header.round = static_cast<int64_t>(value);
        break;
      case 7:
        header.offset = word;
        break;
      case 8:
        header.part = static_cast<uint8_t>(value);
        break;
      case 9:
        header.frames = static_cast<uint16_t>(value);
        break;
      default:
        header.payload_bytes = word;
    }
  }
}

}  // namespace nereus
