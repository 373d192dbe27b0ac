// Compares the kernels for values, blocks and updates on a GPU with their
// references on the CPU. Without a GPU, all tests are skipped. Compiled with
// cuda_emulation.h, the kernels run on the CPU.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "common/compute/bfloat16_cuda.h"
#include "common/compute/block_pieces.h"
#include "common/compute/blocks.h"
#include "common/compute/blocks_cuda.h"
#include "common/compute/frame_halves.h"
#include "common/compute/half.h"
#include "common/compute/sums_cuda.h"
#include "common/compute/update_rules.h"
#include "common/compute/update_rules_cuda.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/needs_gpu.h"

namespace nereus {
namespace {

// Returns the number of values of the largest arrays: 100 MB of values.
// Emulated kernels, and tools that check each access, get fewer values.
int64_t Large() {
#if defined(NEREUS_CUDA_EMULATION)
  return 70'001;
#else
  const char* const values = std::getenv("NEREUS_GPU_TEST_VALUES");
  return values == nullptr ? 25'000'000 : std::atoll(values);
#endif
}

// Lengths around 256, the number of threads of a CUDA block, and around 4096,
// the number of values of a CUDA block.
const std::vector<int64_t> kCounts = {0,    1,    255,  256,    257,
                                      4095, 4096, 4097, Large()};

using KernelTest = NeedsGpu<testing::Test>;

std::vector<float> Normal(int64_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Returns values of random bits, with special values among them.
std::vector<float> AnyBits(int64_t count, int seed) {
  std::mt19937 random(seed);
  const uint32_t kSpecial[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000,
                               0x7fc00000, 0x7f800001, 0xffffffff, 0x00000001,
                               0x33000000, 0x33000001, 0x387fffff, 0x477fefff,
                               0x477ff000, 0x7f7fffff, 0x3f808000, 0x3f818000};
  std::vector<float> values(count);
  for (float& value : values) {
    const uint32_t bits = random();
    value =
        std::bit_cast<float>(bits % 8 == 0 ? kSpecial[(bits >> 3) % 16] : bits);
  }
  return values;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST_F(KernelTest, FirstValueThatIsTooLargeIsFound) {
  for (const int64_t count : kCounts) {
    std::vector<float> values = Normal(count, 3);
    const auto find = [&] {
      const DeviceArray<float> on_values(values);
      const DeviceArray<int64_t> first({kNoneFound});
      NEREUS_CUDA(
          FindTooLargeCuda(on_values.data(), count, first.data(), nullptr));
      return first.Read()[0];
    };
    EXPECT_EQ(find(), kNoneFound) << count;
    if (count == 0) continue;
    values[count - 1] = kTooLarge;
    EXPECT_EQ(find(), count - 1) << count;
    values[count / 2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(find(), count / 2) << count;
    values[0] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(find(), 0) << count;
  }
}

TEST_F(KernelTest, SearchKeepsASmallerEarlierIndex) {
  std::vector<float> values(5000, 1.0f);
  values[4000] = std::numeric_limits<float>::infinity();
  const DeviceArray<float> on_values(values);
  const DeviceArray<int64_t> first({7});
  NEREUS_CUDA(FindTooLargeCuda(on_values.data(), 5000, first.data(), nullptr));
  EXPECT_EQ(first.Read()[0], 7);
}

TEST_F(KernelTest, Bfloat16EqualsTheReference) {
  for (const int64_t count : kCounts) {
    const std::vector<float> values = AnyBits(count, 4);
    std::vector<uint16_t> expected(count);
    for (int64_t i = 0; i < count; ++i) {
      expected[i] = scalar::ToBfloat16(values[i]);
    }
    const DeviceArray<float> on_values(values);
    const DeviceArray<uint16_t> halves(std::vector<uint16_t>(count, 0xabcd));
    NEREUS_CUDA(
        ToBfloat16Cuda(on_values.data(), count, halves.data(), nullptr));
    EXPECT_TRUE(SameBits(halves.Read(), expected)) << count;
  }
}

TEST_F(KernelTest, UpdateRulesEqualTheReference) {
  const AdamStep adam = {0.25f,  0.0005f, 0.998f, 0.9f,
                         0.999f, 0.01f,   30.0f,  1e-8f};
  for (const int64_t count : kCounts) {
    const SgdStep sgd = {0.25f, 0.0005f, 0.9f, 0.02f,
                         /*looks_ahead=*/count % 2 == 1};
    const std::vector<float> gradient = Normal(count, 8);
    std::vector<float> parameters = Normal(count, 9);
    std::vector<float> first(count, 0.0f);
    std::vector<float> second(count, 0.0f);
    std::vector<float> velocity = Normal(count, 10);
    std::vector<float> updated(count);
    const DeviceArray<float> on_gradient(gradient);
    const DeviceArray<float> on_parameters(parameters);
    const DeviceArray<float> on_velocity(velocity);
    const DeviceArray<float> on_first(first);
    const DeviceArray<float> on_second(second);
    const DeviceArray<float> on_updated(updated);
    ApplySgd(sgd, count, gradient.data(), parameters.data(), velocity.data(),
             updated.data());
    NEREUS_CUDA(ApplySgdCuda(sgd, count, on_gradient.data(),
                             on_parameters.data(), on_velocity.data(),
                             on_updated.data(), /*note=*/{}, nullptr));
    EXPECT_TRUE(SameBits(on_updated.Read(), updated)) << count;
    EXPECT_TRUE(SameBits(on_velocity.Read(), velocity)) << count;
    EXPECT_TRUE(SameBits(on_parameters.Read(), parameters)) << count;
    for (int step = 0; step < 2; ++step) {  // In place.
      ApplyAdam(adam, count, gradient.data(), parameters.data(), first.data(),
                second.data(), parameters.data());
      NEREUS_CUDA(ApplyAdamCuda(adam, count, on_gradient.data(),
                                on_parameters.data(), on_first.data(),
                                on_second.data(), on_parameters.data(),
                                /*note=*/{}, nullptr));
    }
    EXPECT_TRUE(SameBits(on_parameters.Read(), parameters)) << count;
    EXPECT_TRUE(SameBits(on_first.Read(), first)) << count;
    EXPECT_TRUE(SameBits(on_second.Read(), second)) << count;
  }
}

// BadResult in pinned memory, as kernels need it.
class Noted {
 public:
  Noted() {
    void* memory = nullptr;
    NEREUS_CUDA(
        cudaHostAlloc(&memory, sizeof(BadResult), cudaHostAllocPortable));
    bad_ = new (memory) BadResult();
  }
  ~Noted() { NEREUS_CUDA(cudaFreeHost(bad_)); }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

  NoteBadResult At(int64_t offset) const {
    return {bad_, offset, /*step=*/7, /*of=*/2};
  }
  // Waits for the kernels of the default stream.
  BadResult Read() const {
    NEREUS_CUDA(cudaStreamSynchronize(nullptr));
    return *bad_;
  }

 private:
  BadResult* bad_ = nullptr;
};

// Expects what kernels noted: the value `index`, or with a negative one
// nothing.
void ExpectNoted(const Noted& noted, int64_t index) {
  const BadResult bad = noted.Read();
  EXPECT_EQ(bad.index, index);
  if (index < 0) return;
  EXPECT_EQ(bad.step, 7);
  EXPECT_EQ(bad.of, 2);
}

TEST_F(KernelTest, ResultsThatAreNotFiniteAreNoted) {
  const SgdStep sgd = {1.0f, 0.0f, 0.9f, 1e10f};
  const AdamStep adam = {1.0f, 0.0f, 1.0f, 0.9f, 0.999f, 0.01f, 30.0f, 1e-8f};
  for (const int64_t count : kCounts) {
    if (count == 0) continue;
    for (const int64_t bad : {int64_t{-1}, int64_t{0}, count / 2, count - 1}) {
      std::vector<float> gradient(count, 1.0f);
      // sgd: 1e38 times the learning rate is infinite. adam: so is its square,
      // and the parameter stays finite.
      if (bad >= 0) gradient[bad] = 1e38f;
      const std::vector<float> zeros(count, 0.0f);
      const DeviceArray<float> on_gradient(gradient);
      const DeviceArray<float> parameters(zeros);
      const DeviceArray<float> first(zeros);
      const DeviceArray<float> second(zeros);
      const int64_t expected = bad < 0 ? -1 : 100 + bad;
      const Noted by_sgd;
      NEREUS_CUDA(ApplySgdCuda(sgd, count, on_gradient.data(),
                               parameters.data(), first.data(),
                               parameters.data(), by_sgd.At(100), nullptr));
      ExpectNoted(by_sgd, expected);
      const DeviceArray<float> others(zeros);
      const DeviceArray<float> moments(zeros);
      const Noted by_adam;
      NEREUS_CUDA(ApplyAdamCuda(adam, count, on_gradient.data(), others.data(),
                                moments.data(), second.data(), others.data(),
                                by_adam.At(100), nullptr));
      ExpectNoted(by_adam, expected);
      const Noted by_look;
      NEREUS_CUDA(
          CheckFiniteCuda(parameters.data(), count, by_look.At(100), nullptr));
      ExpectNoted(by_look, expected);
      // A later search does not replace what an earlier one found.
      NEREUS_CUDA(
          CheckFiniteCuda(parameters.data(), count, by_look.At(5000), nullptr));
      ExpectNoted(by_look, expected);
    }
  }
}

// Returns the pieces of many layers, with different lengths and block sizes. A
// layer's first block may begin before the layer, and its last block may end
// behind the layer.
std::vector<BlockPieces> ManyPieces() {
  std::vector<BlockPieces> all;
  for (const int64_t count : kCounts) {
    for (const int64_t block : {1000, 4096, 32768}) {
      for (const int64_t skipped : {int64_t{0}, int64_t{1}, block - 1}) {
        all.push_back({count, block, skipped});
      }
    }
  }
  all.push_back({300, 1, 0});
  return all;
}

// True if `norm` is within the bound of blocks_cuda.h.
bool IsNear(const BlockPieces& pieces, float norm, double expected) {
  const double bound =
      (static_cast<double>(pieces.block) / 256 + 9) * std::ldexp(1.0, -24);
  return std::fabs(norm - expected) <= bound * expected;
}

double SumOf(const std::vector<float>& values, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += std::fabs(values[i]);
  return sum;
}

// Operands of a split. The four values of PieceUse take turns from piece to
// piece.
struct Split {
  explicit Split(const BlockPieces& pieces)
      : parameters(Normal(pieces.values, 13)),
        gradient(Normal(pieces.values, 12)),
        velocity(Normal(pieces.values, 14)),
        held(Normal(pieces.values, 15)) {
    for (int64_t k = 0; k < pieces.Count(); ++k) {
      uses.push_back(static_cast<PieceUse>((k + pieces.skipped) % 4));
    }
  }
  std::vector<PieceUse> uses;
  std::vector<float> parameters;
  std::vector<float> gradient;
  std::vector<float> velocity;
  std::vector<float> held;
};

TEST_F(KernelTest, SplitsEqualTheReferenceAndNormsAreWithinTheBound) {
  for (const BlockPieces& pieces : ManyPieces()) {
    const Split before(pieces);
    Split split = before;
    std::vector<float> norms(pieces.Count(), 0.0f);
    SplitPieces(pieces, 0.9f, 0.0005f, split.uses.data(),
                split.parameters.data(), split.gradient.data(),
                split.velocity.data(), split.held.data(), norms.data());
    std::vector<float> norms_before;
    for (int run = 0; run < 2; ++run) {
      const DeviceArray<PieceUse> uses(before.uses);
      const DeviceArray<float> parameters(before.parameters);
      const DeviceArray<float> gradient(before.gradient);
      const DeviceArray<float> velocity(before.velocity);
      const DeviceArray<float> held(before.held);
      const DeviceArray<float> on_norms(
          std::vector<float>(pieces.Count(), -1.0f));
      NEREUS_CUDA(SplitPiecesCuda(pieces, 0.9f, 0.0005f, uses.data(),
                                  parameters.data(), gradient.data(),
                                  velocity.data(), held.data(), on_norms.data(),
                                  nullptr));
      EXPECT_TRUE(SameBits(gradient.Read(), split.gradient)) << pieces.values;
      EXPECT_TRUE(SameBits(velocity.Read(), split.velocity)) << pieces.values;
      EXPECT_TRUE(SameBits(held.Read(), split.held)) << pieces.values;
      const std::vector<float> found = on_norms.Read();
      for (int64_t k = 0; k < pieces.Count(); ++k) {
        const double sum =
            SumOf(Travels(before.uses[k]) ? before.gradient : split.held,
                  pieces.Begin(k), pieces.End(k));
        EXPECT_TRUE(IsNear(pieces, found[k], sum))
            << "piece " << k << ": " << found[k] << ", must be " << sum;
      }
      EXPECT_TRUE(run == 0 || SameBits(found, norms_before));
      norms_before = found;
    }
  }
}

TEST_F(KernelTest, SplitWhereAllPiecesTravelTouchesNoHeldValues) {
  const BlockPieces pieces{5000, 256, 17};
  const std::vector<float> values = Normal(pieces.values, 12);
  const DeviceArray<float> gradient(values);
  const DeviceArray<PieceUse> uses(
      std::vector<PieceUse>(pieces.Count(), PieceUse::kTravels));
  const DeviceArray<float> norms(std::vector<float>(pieces.Count(), 0.0f));
  NEREUS_CUDA(SplitPiecesCuda(pieces, 0.9f, 0.1f, uses.data(), nullptr,
                              gradient.data(), nullptr, nullptr, norms.data(),
                              nullptr));
  EXPECT_TRUE(SameBits(gradient.Read(), values));
}

TEST_F(KernelTest, ChosenPiecesArePackedInOrder) {
  for (const BlockPieces& pieces : ManyPieces()) {
    for (const int every : {1, 2, 5}) {
      std::vector<int32_t> chosen;
      int64_t packed_values = 0;
      for (int64_t k = pieces.block % every; k < pieces.Count(); k += every) {
        chosen.push_back(static_cast<int32_t>(k));
        packed_values += pieces.End(k) - pieces.Begin(k);
      }
      const auto count = std::ssize(chosen);
      const std::vector<float> values = Normal(pieces.values, 16);
      std::vector<float> packed(packed_values);
      GatherPieces(pieces, chosen.data(), count, values.data(), packed.data());
      const DeviceArray<float> on_values(values);
      const DeviceArray<int32_t> on_chosen(chosen);
      const DeviceArray<float> on_packed(
          std::vector<float>(packed_values, 4.0f));
      NEREUS_CUDA(GatherPiecesCuda(pieces, on_chosen.data(), count,
                                   on_values.data(), on_packed.data(),
                                   nullptr));
      EXPECT_TRUE(SameBits(on_packed.Read(), packed))
          << pieces.values << " in blocks of " << pieces.block;
    }
  }
}

}  // namespace
}  // namespace nereus
