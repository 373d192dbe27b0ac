// Feeds hostile tables of layers to their parser. Each test runs for two
// seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/model_table_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/model_table.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

constexpr char kHeader[] = "name,kind,m,n,parameters,rows_per_sample\n";
constexpr char kTable[] =
    "# A comment.\n"
    "name,kind,m,n,parameters,rows_per_sample\n"
    "conv1,conv,64,27,1792,50176\r\n"
    "\n"
    "embed,embedding,1000,32,32000,1\n"
    "norm,vector,1,64,128,1\n"
    "fc6,fc,4096,25088,102764544,1\n";

// Returns a table with plausible lines and extreme numbers.
std::string RandomTable(Random& random) {
  constexpr const char* kKinds[] = {"fc", "conv", "embedding", "vector", "fcc"};
  std::string table = kHeader;
  for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
    const uint64_t m = EdgeNumber(random);
    const uint64_t n = EdgeNumber(random);
    const uint64_t parameters = random.Chance(0.7)
                                    ? m * n + (random.Chance(0.5) ? m : 0)
                                    : EdgeNumber(random);
    absl::StrAppend(&table, "layer", i, ",", kKinds[random.Below(5)], ",", m,
                    ",", n, ",", parameters, ",", EdgeNumber(random), "\n");
  }
  return table;
}

int64_t RandomBatch(Random& random) {
  return random.Chance(0.5) ? 32 : static_cast<int64_t>(EdgeNumber(random));
}

// Writes the layers as a table again.
std::string TableOf(const std::vector<LayerSpec>& layers, int64_t batch) {
  std::string table = kHeader;
  for (const LayerSpec& layer : layers) {
    absl::StrAppend(&table, layer.name, ",",
                    std::string(LayerKindName(layer.kind)), ",", layer.m, ",",
                    layer.n, ",", layer.parameters, ",", layer.rows / batch,
                    "\n");
  }
  return table;
}

TEST(ModelTableFuzzTest, TableIsRefusedOrReadBackUnchanged) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 100; ++i) {
      std::string text = random.Chance(0.5) ? kTable : RandomTable(random);
      if (random.Chance(0.05)) text = RandomBytes(random, random.Below(200));
      if (random.Chance(0.7)) Mutate(random, text);
      const int64_t batch = RandomBatch(random);
      const auto layers = ParseModelTable(text, batch);
      if (!layers.ok()) {
        ASSERT_EQ(layers.status().code(), absl::StatusCode::kInvalidArgument);
        ASSERT_FALSE(layers.status().message().empty());
        // The message is short and printable, even for a long line.
        ASSERT_LT(layers.status().message().size(), 2000u);
        for (const char c : layers.status().message()) {
          ASSERT_TRUE(c >= ' ' && c <= '~') << layers.status();
        }
        continue;
      }
      ++accepted;
      ASSERT_TRUE(ValidateLayers(*layers).ok());
      const auto again = ParseModelTable(TableOf(*layers, batch), batch);
      ASSERT_TRUE(again.ok()) << again.status();
      ASSERT_EQ(*again, *layers);
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Parses a line of a megabyte, and a hundred thousand lines.
TEST(ModelTableFuzzTest, LargeInputIsRefusedQuickly) {
  for (const std::string& text :
       {std::string(1 << 20, ','), std::string(1 << 20, '\n'),
        kHeader + std::string(1 << 20, 'x'),
        kHeader + std::string(1 << 20, ',')}) {
    const absl::Status status = ParseModelTable(text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_LT(status.message().size(), 1000u);
  }
  std::string many = kHeader;
  for (int i = 0; i < kLayersMax + 1; ++i) {
    absl::StrAppend(&many, "l", i, ",vector,1,1,1,1\n");
  }
  EXPECT_EQ(ParseModelTable(many, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nereus
