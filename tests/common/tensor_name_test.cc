#include "common/checkpoint/tensor_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

struct Named {
  TensorName name;
  const char* text;
};

const std::vector<Named>& Examples() {
  static const auto& examples = *new std::vector<Named>{
      {{"fc6", true, 0, 0, ""}, "fc6"},
      {{"fc6", true, 0, 0, "velocity"}, "fc6.velocity"},
      {{"fc6.velocity", true, 0, 0, ""}, "fc6%2Evelocity"},
      {{"fc6.velocity", true, 0, 0, "velocity"}, "fc6%2Evelocity.velocity"},
      {{"a.b", false, 3, 8, "first_moment"}, "a.b[3:8].first_moment"},
      {{"a.second_moment", false, 0, 1, ""}, "a%2Esecond_moment[0:1]"},
      {{"fc6", true, 0, 0, "state0"}, "fc6.state0"},
      {{"fc6.state7", false, 0, 1, "state7"}, "fc6%2Estate7[0:1].state7"},
      {{"fc6.state8", true, 0, 0, ""}, "fc6.state8"},
      {{"a[0:1]", true, 0, 0, ""}, "a%5B0:1%5D"},
      {{"100%", true, 0, 0, ""}, "100%25"},
      {{"%2Evelocity", true, 0, 0, ""}, "%252Evelocity"},
      {{"__metadata__", true, 0, 0, ""}, "%5F_metadata__"},
      {{"__metadata__", false, 0, 2, ""}, "%5F_metadata__[0:2]"},
      {{"a b\"\\", true, 0, 0, ""}, "a b\"\\"},
  };
  return examples;
}

TEST(TensorNameTest, NamesMatchTheFormat) {
  for (const Named& example : Examples()) {
    EXPECT_EQ(EncodeTensorName(example.name), example.text);
    const auto name = DecodeTensorName(example.text);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(*name, example.name) << example.text;
  }
}

TEST(TensorNameTest, StatesBelongToTheRuleOrTheCaller) {
  using testing::ElementsAre;
  EXPECT_THAT(StateNames(OptimizerPlace::kServer, UpdateRule::kSgd, 1),
              ElementsAre("velocity"));
  EXPECT_THAT(StateNames(OptimizerPlace::kServer, UpdateRule::kAdam, 2),
              ElementsAre("first_moment", "second_moment"));
  EXPECT_THAT(StateNames(OptimizerPlace::kWorker, UpdateRule::kAdam, 3),
              ElementsAre("state0", "state1", "state2"));
  EXPECT_TRUE(StateNames(OptimizerPlace::kWorker, UpdateRule::kSgd, 0).empty());
}

TEST(TensorNameTest, UnwrittenNamesAreNotRead) {
  for (const char* text : {"",
                           "a[0:1",
                           "a[0:1]]",
                           "a[0:1][0:1]",
                           "a[1:1]",
                           "a[2:1]",
                           "a[-1:1]",
                           "a[0:]",
                           "a[:1]",
                           "a[0]",
                           "a[ 0:1]",
                           "a[00:1]",
                           "a[+0:1]",
                           "a]",
                           "100%",
                           "a%5b",
                           "a%41",
                           "a%2E",
                           "%5F",
                           "__metadata__",
                           "[0:1]",
                           ".velocity",
                           "a[0:9223372036854775808]",
                           "a[0:1].state",
                           "a\n",
                           "\xc3\xa4"}) {
    EXPECT_EQ(DecodeTensorName(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

// Names are made of parts that have a meaning in names, so that a wrong rule
// would give two tensors the same name.
TEST(TensorNameTest, DifferentTensorsHaveDifferentNames) {
  constexpr const char* kParts[] = {
      "a",  ".velocity", ".state0",      "[0:1]",     "%",
      "2E", "5B",        "%2E",          "[",         "]",
      "__", ".",         "first_moment", "metadata__"};
  for (const uint64_t seed : TestSeeds(3000)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    TensorName name;
    for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
      name.layer += kParts[random.Below(std::size(kParts))];
    }
    name.whole = random.Chance(0.5);
    if (!name.whole) {
      name.first = static_cast<int64_t>(random.Below(3));
      name.last = name.first + 1;
    }
    if (random.Chance(0.5)) {
      name.state = random.Chance(0.5) ? "velocity" : "state0";
    }
    const std::string text = EncodeTensorName(name);
    EXPECT_NE(text, "__metadata__");
    const auto decoded = DecodeTensorName(text);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, name) << text;
  }
}

}  // namespace
}  // namespace nereus
