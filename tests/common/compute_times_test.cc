#include "common/plan/compute_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/model_table.h"

namespace nereus {
namespace {

using testing::HasSubstr;

std::vector<LayerSpec> Layers() {
  return {{"conv", LayerKind::kConvolution, 64, 27, 1792, 100},
          {"norm", LayerKind::kVector, 1, 64, 128, 1},
          {"fc", LayerKind::kFullyConnected, 10, 64, 650, 20, true}};
}

TEST(ComputeTimesTest, TimesAreProportionalToOperations) {
  const auto times = SplitCompute(Layers(), absl::Seconds(3), 2.0 / 3);
  ASSERT_EQ(times.size(), 3u);
  // The times are as 64 * 27 * 100 to 10 * 64 * 20.
  const double conv = 172800.0 / (172800 + 12800);
  EXPECT_NEAR(absl::ToDoubleSeconds(times[0].forward), conv, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(times[0].backward), 2 * conv, 1e-9);
  EXPECT_EQ(times[1], LayerTime());
  EXPECT_NEAR(absl::ToDoubleSeconds(times[2].forward), 1 - conv, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(TotalTime(times)), 3.0, 1e-8);
}

TEST(ComputeTimesTest, TimesWithoutProductsAreProportionalToParameters) {
  const auto times = SplitCompute(
      std::vector<LayerSpec>{{"a", LayerKind::kVector, 1, 10, 10, 1},
                             {"b", LayerKind::kEmbedding, 3, 10, 30, 1}},
      absl::Seconds(4), 0.5);
  EXPECT_EQ(times[0], (LayerTime{absl::Seconds(0.5), absl::Seconds(0.5)}));
  EXPECT_EQ(times[1], (LayerTime{absl::Seconds(1.5), absl::Seconds(1.5)}));
}

// The model has 19.6 billion multiplications per image, 124 million of them in
// its fc layers.
TEST(ComputeTimesTest, MostOfVgg19IsInItsConvolutions) {
  const auto layers = LoadModel("vgg19", 32);
  ASSERT_TRUE(layers.ok());
  const auto times = SplitCompute(*layers, absl::Seconds(1), 0.667);
  absl::Duration fully_connected;
  for (size_t i = 16; i < 19; ++i) {
    fully_connected += times[i].forward + times[i].backward;
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(fully_connected), 0.124 / 19.6, 1e-4);
}

std::string Entry(const std::string& name, const std::string& forward,
                  const std::string& backward) {
  return absl::StrCat("{\"name\": \"", name,
                      "\", \"forward_seconds\": ", forward,
                      ", \"backward_seconds\": ", backward, "}");
}

std::string Trace(const std::string& entries) {
  return absl::StrCat("{\"layers\": [", entries, "], \"gpu\": \"any\"}");
}

TEST(ComputeTraceTest, TraceGivesLayersTheirTimesInAnyOrder) {
  const auto times = ParseComputeTrace(
      Trace(absl::StrCat(Entry("fc", "0.5", "1"), ",", Entry("norm", "0", "0"),
                         ",", Entry("conv", "1e-3", "0.002"))),
      Layers());
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(*times, (std::vector<LayerTime>{
                        {absl::Milliseconds(1), absl::Milliseconds(2)},
                        {},
                        {absl::Seconds(0.5), absl::Seconds(1)}}));
}

struct BadTrace {
  const char* name;
  std::string text;
  const char* message;
};

class BadTraceTest : public testing::TestWithParam<BadTrace> {};

TEST_P(BadTraceTest, BadTraceIsRefusedWithPlaceAndValue) {
  const auto status = ParseComputeTrace(GetParam().text, Layers()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadTraceTest,
    testing::ValuesIn(std::vector<BadTrace>{
        {"Empty", "", "is not JSON"},
        {"NotJson", "{\"layers\": [", "is not JSON"},
        {"NoLayers", "{}", "layers is missing"},
        {"LayersAreNoArray", "{\"layers\": 3}",
         "layers is number 3, not a list"},
        {"NoObject", "[]", "is not a JSON object"},
        {"EntryIsNoObject", Trace("7"), "layers[0]: is not a JSON object"},
        {"NameIsNoString", Trace("{\"name\": 1}"),
         "layers[0]: name is number 1, not a string"},
        {"UnknownLayer", Trace(Entry("fc7", "1", "1")),
         "layers[0] (\"fc7\") is not a layer of the model"},
        {"Twice", Trace(Entry("fc", "1", "1") + "," + Entry("fc", "1", "1")),
         "layers[1] (\"fc\") repeats the layer of an earlier entry"},
        {"NoBackward", Trace("{\"name\": \"fc\", \"forward_seconds\": 1}"),
         "layers[0] (\"fc\"): backward_seconds is missing"},
        {"Text", Trace(Entry("fc", "\"1\"", "1")),
         "forward_seconds is string, not a number"},
        {"Negative", Trace(Entry("fc", "-1", "1")), "forward_seconds is -1"},
        {"TooLong", Trace(Entry("fc", "1", "1e9")),
         "backward_seconds is 1e+09, must be from 0 to 86400"},
        {"Missing", Trace(Entry("norm", "1", "1")),
         "layers of the model are missing: conv, fc"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(ComputeTraceTest, ErrorNamesOnlyAFewOfManyMissingLayers) {
  const auto layers = LoadModel("vgg19", 1);
  const auto status = ParseComputeTrace("{\"layers\": []}", *layers).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("conv1_1, conv1_2, conv2_1, conv2_2, conv3_1 and 14 "
                        "more"));
}

}  // namespace
}  // namespace nereus
