#include "worker/trainer/replay_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nereus {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// A replay of four steps, three of them measured, on a GPU or a CPU.
ReplayReport MakeReport(bool on_gpu) {
  ReplayReport report;
  report.rank = 1;
  report.device = on_gpu ? "cuda:0" : "cpu";
  report.computing = absl::Milliseconds(9);
  report.result.steps = {absl::Milliseconds(30), absl::Milliseconds(10),
                         absl::Milliseconds(12)};
  report.result.steps_begun = 4;
  LayerReport layer;
  layer.name = "fc1";
  layer.scheme = "factor";
  layer.rounds = 4;
  layer.bytes_sent = 100;
  layer.bytes_received = 200;
  layer.latency_total = absl::Milliseconds(20);
  report.costs.layers = {layer};
  report.costs.peers = {{true, 0, 1, 2}, {false, 3, 4, 5}};
  if (!on_gpu) return report;
  using Kind = GpuSpan::Kind;
  const auto span = [](Kind kind, int64_t step, int begin, int end) {
    return GpuSpan{kind, 0, step, absl::Milliseconds(begin),
                   absl::Milliseconds(end)};
  };
  report.bytes_copied_out = 400;
  report.bytes_copied_in = 800;
  // Nothing is hidden in the first step. In the second step, half of the copy
  // to the host is, and a quarter of all.
  report.timeline = {
      span(Kind::kCompute, 0, 0, 10), span(Kind::kCopyOut, 0, 10, 20),
      span(Kind::kCompute, 1, 30, 40), span(Kind::kCopyOut, 1, 35, 45),
      span(Kind::kCopyIn, 1, 45, 55)};
  return report;
}

TEST(ReplayReportTest, JsonHasEqualNamesOnBothDevices) {
  const json cpu = json::parse(ReplayJson(MakeReport(false)));
  const json gpu = json::parse(ReplayJson(MakeReport(true)));
  for (const auto& [name, value] : gpu.items()) {
    ASSERT_TRUE(cpu.contains(name)) << name;
    if (name != "device" && name != "copies") {
      EXPECT_EQ(value, cpu[name]) << name;
    }
  }
  EXPECT_EQ(cpu.size(), gpu.size());
  EXPECT_EQ(cpu["copies"], nullptr);
}

TEST(ReplayReportTest, JsonHasStepsNetworkAndCopies) {
  const json report = json::parse(ReplayJson(MakeReport(true)));
  EXPECT_EQ(report["event"], "replayed");
  EXPECT_EQ(report["rank"], 1);
  EXPECT_EQ(report["device"], "cuda:0");
  EXPECT_EQ(report["compute_seconds"], 0.009);
  EXPECT_EQ(report["steps"], 4);
  EXPECT_EQ(report["step_seconds_median"], 0.012);
  EXPECT_EQ(report["step_seconds_p05"], 0.010);
  EXPECT_EQ(report["step_seconds_p95"], 0.030);
  EXPECT_THAT(report["step_seconds"], ElementsAre(0.030, 0.010, 0.012));
  EXPECT_EQ(report["bytes_sent"], 5);
  EXPECT_EQ(report["bytes_received"], 7);
  EXPECT_EQ(report["layers"][0]["latency_seconds_mean"], 0.005);
  EXPECT_EQ(report["copies"]["bytes_out_per_step"], 100.0);
  EXPECT_EQ(report["copies"]["bytes_in_per_step"], 200.0);
  EXPECT_EQ(report["copies"]["hidden_share"], 0.25);
  EXPECT_EQ(report["copies"]["hidden_share_out"], 0.5);
  EXPECT_EQ(report["copies"]["hidden_share_in"], 0.0);
}

TEST(ReplayReportTest, NumbersThatDoNotExistAreNull) {
  ReplayReport report = MakeReport(true);
  report.result.steps.clear();
  report.timeline->pop_back();
  const json parsed = json::parse(ReplayJson(report));
  EXPECT_EQ(parsed["step_seconds_median"], nullptr);
  EXPECT_THAT(parsed["step_seconds"], SizeIs(0));
  EXPECT_EQ(parsed["copies"]["hidden_share_in"], nullptr);
  const std::vector<std::string> text = ReplayText(report);
  EXPECT_THAT(text[0], HasSubstr("replayed 4 steps on cuda:0: no step has a "
                                 "time"));
  EXPECT_THAT(text[1], HasSubstr("(to the host 50 %, to the GPU not known)"));
}

TEST(ReplayReportTest, TextHasALineForEachSubject) {
  const std::vector<std::string> gpu = ReplayText(MakeReport(true));
  ASSERT_THAT(gpu, SizeIs(4));
  EXPECT_THAT(gpu[0], HasSubstr("replayed 4 steps on cuda:0: median 12.000 ms "
                                "(5 % to 95 %: 10.000 to 30.000 ms), of which "
                                "9.000 ms computing"));
  EXPECT_THAT(gpu[1], HasSubstr("100 bytes to the host, 200 to the GPU"));
  EXPECT_THAT(gpu[1], HasSubstr("beside computing: 25 % of their time (to the "
                                "host 50 %, to the GPU 0 %)"));
  EXPECT_THAT(gpu[2], HasSubstr("5 bytes sent, 7 received"));
  EXPECT_THAT(gpu[3], HasSubstr("layer fc1: scheme factor"));
  EXPECT_THAT(ReplayText(MakeReport(false)), SizeIs(3));
}

TEST(QuantileTest, QuantilesOfFewTimes) {
  EXPECT_EQ(Quantile({}, 0.5), absl::ZeroDuration());
  const std::vector<absl::Duration> times = {absl::Seconds(3), absl::Seconds(1),
                                             absl::Seconds(2)};
  EXPECT_EQ(Quantile(times, 0.0), absl::Seconds(1));
  EXPECT_EQ(Quantile(times, 0.5), absl::Seconds(2));
  EXPECT_EQ(Quantile(times, 1.0), absl::Seconds(3));
}

}  // namespace
}  // namespace nereus
