// Feeds hostile bytes to the reader of a socket, cut at any place. Each test
// runs for two seconds, or as long as NEREUS_FUZZ_SECONDS says.
// NEREUS_TEST_SEED replays a failure.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/memory/frame_ring.h"
#include "common/transport/socket/frame_reader.h"
#include "common/transport/socket/frame_writer.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

std::pair<Descriptor, Descriptor> Pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<Frame> SomeFrames(Random& random) {
  std::vector<Frame> frames(1 + random.Below(8));
  for (size_t i = 0; i < frames.size(); ++i) {
    Frame& frame = frames[i];
    const int64_t bytes = static_cast<int64_t>(
        random.Chance(0.2) ? random.Below(kFramePayloadBytesMax + 1)
                           : random.Below(3000));
    frame.header.kind = FrameKind::kContribution;
    frame.header.layer = static_cast<uint32_t>(i);
    frame.payload = Buffer::Allocate(bytes);
    for (int64_t at = 0; at < bytes; ++at) {
      frame.payload.data()[at] = static_cast<uint8_t>(random.Below(256));
    }
    frame.header.payload_bytes = static_cast<uint32_t>(bytes);
    frame.priority = 0;
  }
  return frames;
}

// Reads frames until there are no more, until an error, or until `most` frames
// have come. Payloads land in scratch, or are discarded.
struct ReadOut {
  std::vector<std::pair<uint32_t, std::string>> frames;
  absl::Status status;
};
void ReadAll(FrameReader& reader, int fd, Random& random, Buffer& scratch,
             ReadOut& out) {
  using Next = FrameReader::Next;
  while (out.status.ok()) {
    const auto next = reader.Read(fd);
    out.status = next.status();
    if (!next.ok() || *next == Next::kNothing || *next == Next::kEnd) return;
    if (*next == Next::kHeader) {
      ASSERT_LE(reader.header().payload_bytes, kFramePayloadBytesMax);
      scratch = random.Chance(0.1) ? Buffer()
                                   : Buffer::Allocate(kFramePayloadBytesMax);
      reader.Land(scratch.data());
      continue;
    }
    const size_t bytes = reader.header().payload_bytes;
    if (scratch.data() == nullptr) {
      out.frames.emplace_back(reader.header().layer, "dropped");
      continue;
    }
    if (reader.payload_crc() != Crc32c(scratch.data(), bytes)) {
      out.status = InternalError("another checksum");
      return;
    }
    out.frames.emplace_back(
        reader.header().layer,
        std::string(reinterpret_cast<const char*>(scratch.data()), bytes));
  }
}

// A peer that never stops sending must not occupy the reader forever.
TEST(SocketFramesTest, DrainingAnEndlessPeerEnds) {
  auto [here, there] = Pair();
  const int space = 8 << 20;
  setsockopt(here.get(), SOL_SOCKET, SO_SNDBUFFORCE, &space, sizeof(space));
  const std::string junk(64 * 1024, 'x');
  int64_t sent = 0;
  while (true) {
    const ssize_t more =
        send(here.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
    if (more < 0) break;
    sent += more;
  }
  if (sent <= 2 << 20) GTEST_SKIP() << "the kernel holds " << sent << " bytes";
  const auto next = FrameReader::Drain(there.get());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, FrameReader::Next::kNothing);
  char byte = 0;
  EXPECT_EQ(recv(there.get(), &byte, 1, 0), 1) << "there is more";
}

// The kernel may take any number of bytes at a time, and may cut anywhere.
TEST(SocketFramesFuzzTest, WrittenFramesAreReadBack) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    auto [here, there] = Pair();
    const int space = 4096 << random.Below(8);
    setsockopt(here.get(), SOL_SOCKET, SO_SNDBUF, &space, sizeof(space));
    const std::vector<Frame> frames = SomeFrames(random);
    size_t written = 0;
    FrameWriter writer([&](const FrameHeader&) { ++written; });
    for (const Frame& frame : frames) writer.Push(frame);
    FrameReader reader;
    Buffer scratch;
    ReadOut out;
    for (int turn = 0; out.frames.size() < frames.size() && turn < 100000;
         ++turn) {
      const auto all = writer.Write(here.get());
      ASSERT_TRUE(all.ok()) << all.status();
      ReadAll(reader, there.get(), random, scratch, out);
      ASSERT_TRUE(out.status.ok()) << out.status;
    }
    EXPECT_TRUE(writer.empty());
    EXPECT_EQ(written, frames.size());
    ASSERT_EQ(out.frames.size(), frames.size());
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_EQ(out.frames[i].first, i);
      if (out.frames[i].second == "dropped") continue;
      const Buffer& payload = frames[i].payload;
      EXPECT_EQ(out.frames[i].second,
                std::string(reinterpret_cast<const char*>(payload.data()),
                            static_cast<size_t>(payload.bytes())));
    }
  }
}

TEST(SocketFramesFuzzTest, HostileBytesAreReadOrRefused) {
  int refused = 0;
  int read = 0;
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string bytes;
    for (Frame& frame : SomeFrames(random)) {
      frame.header.payload_crc = Crc32c(
          frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
      std::string header(kFrameHeaderBytes, '\0');
      EncodeFrameHeader(frame.header,
                        reinterpret_cast<uint8_t*>(header.data()));
      bytes += header;
      bytes.append(reinterpret_cast<const char*>(frame.payload.data()),
                   static_cast<size_t>(frame.payload.bytes()));
    }
    Mutate(random, bytes);
    auto [here, there] = Pair();
    FrameReader reader;
    Buffer scratch;
    ReadOut out;
    size_t sent = 0;
    while (sent < bytes.size() && out.status.ok()) {
      const size_t most =
          std::min<size_t>(bytes.size() - sent, 1 + random.Below(20000));
      const ssize_t more =
          send(here.get(), bytes.data() + sent, most, MSG_NOSIGNAL);
      if (more > 0) sent += static_cast<size_t>(more);
      ReadAll(reader, there.get(), random, scratch, out);
    }
    here.Close();
    if (out.status.ok()) ReadAll(reader, there.get(), random, scratch, out);
    ++(out.status.ok() ? read : refused);
    EXPECT_FALSE(absl::IsInternal(out.status)) << out.status;
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(refused, 0);
    EXPECT_GT(read, 0);
  }
}

// The peer may write anything into its half of the memory, at any time. The
// reader reads only that half, and each frame agrees with its header.
TEST(SocketFramesFuzzTest, HostileSharedMemoryIsReadOrRefused) {
  FuzzBudget budget;
  int64_t found = 0;
  int64_t refused = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const Buffer memory = Buffer::AllocateZeroed(FrameRing::kBytes);
    FrameRingWriter writer(memory.data());
    FrameRingReader reader(memory.data());
    const auto spoil = [&] {
      auto& control = *reinterpret_cast<FrameRing::Control*>(memory.data());
      switch (random.Below(4)) {
        case 0:
          control.head = random.Chance(0.5) ? random.Below(1 << 21) / 64 * 64
                                            : random.Next();
          break;
        case 1:
          control.tail = random.Chance(0.5) ? random.Below(1 << 21) / 64 * 64
                                            : random.Next();
          break;
        default:
          const auto at = static_cast<int64_t>(
              random.Below(random.Chance(0.5) ? 4096 : FrameRing::kBytes));
          memory.data()[std::min<int64_t>(at, memory.bytes() - 1)] =
              static_cast<uint8_t>(random.Below(256));
      }
    };
    for (int i = 0; i < 30; ++i) {
      for (const Frame& frame : SomeFrames(random)) {
        const auto pushed = writer.Push(frame.header, frame.payload);
        if (!pushed.ok() || !*pushed) break;
      }
      if (random.Chance(0.7)) spoil();
      FrameHeader header;
      Buffer payload;
      const auto next = reader.Front(header, payload);
      refused += next.ok() ? 0 : 1;
      if (!next.ok()) break;
      if (!*next) continue;
      ++found;
      ASSERT_EQ(payload.bytes(), header.payload_bytes);
      ASSERT_GE(payload.data(), memory.data());
      ASSERT_LE(payload.data() + payload.bytes(),
                memory.data() + memory.bytes());
      if (random.Chance(0.7)) reader.Pop();
    }
  }
  EXPECT_GT(found + refused, 0);
}

}  // namespace
}  // namespace nereus
