#include "worker/trainer/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nereus {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TrainResult Trained() {
  TrainResult result;
  result.workers = 4;
  result.steps = 620;
  result.last_step = 619;
  result.images = 19840;
  result.train_loss = 0.5;
  result.total = absl::Seconds(40);
  result.forward = absl::Seconds(10);
  result.backward = absl::Seconds(20);
  result.wait = absl::Seconds(5);
  return result;
}

ClientReport Costs() {
  LayerReport layer;
  layer.name = "fc1";
  layer.scheme = "factor";
  layer.reason = "12 < 34";
  layer.rounds = 4;
  layer.bytes_sent = 100;
  layer.bytes_received = 200;
  layer.latency_total = absl::Milliseconds(20);
  ClientReport costs;
  costs.layers = {layer};
  costs.turn_time = absl::Seconds(3);
  costs.peers = {{true, 0, 1, 2}, {false, 3, 4, 5}};
  return costs;
}

WorkerResult ResultOf(const ClientReport& costs) {
  const std::vector<LayerSpec> specs = {
      {"fc1", LayerKind::kFullyConnected, 2, 3, 8, 32, true}};
  WorkerResult result = MakeResult(Trained(), costs, specs);
  result.rank = 1;
  result.parameter_checksum = "00ab12cd";
  result.initial_bytes = 77;
  return result;
}

GpuSpan SpanOf(GpuSpan::Kind kind, int layer, int begin, int end) {
  return {kind, layer, 3, absl::Microseconds(begin), absl::Microseconds(end)};
}

TEST(TraceTest, TellsTheCopiesOfAGpu) {
  using Kind = GpuSpan::Kind;
  const std::vector<GpuSpan> spans = {
      SpanOf(Kind::kCompute, 1, 0, 10), SpanOf(Kind::kCompute, 0, 10, 30),
      SpanOf(Kind::kCopyOut, 1, 5, 25), SpanOf(Kind::kCopyOut, 0, 30, 40),
      SpanOf(Kind::kCopyIn, 1, 20, 40)};
  const auto trace = nlohmann::json::parse(
      TraceJson(spans, std::vector<LayerSpec>{{"a"}, {"b"}}));
  const auto& copy = trace.at("traceEvents").at(2);
  EXPECT_EQ(copy.at("name"), "b");
  EXPECT_EQ(copy.at("cat"), "copy out");
  EXPECT_EQ(copy.at("ts"), 5.0);
  EXPECT_EQ(copy.at("dur"), 20.0);
  EXPECT_EQ(copy.at("args").at("step"), 3);
}

TEST(ReportTest, ProgressIsOneLineOfJson) {
  TrainProgress progress;
  progress.epoch = 1;
  progress.epochs = 10;
  progress.step = 12;
  progress.steps = 620;
  progress.loss = 0.25;
  progress.images_per_second = 812.5;
  const WorkerProgress event = MakeProgress(3, progress, 123456);
  EXPECT_EQ(FormatWorkerEvent(event),
            R"({"event":"progress","rank":3,"epoch":1,"epochs":10,"step":12,)"
            R"("steps":620,"loss":0.25,"images_per_second":812.5,)"
            R"("bytes":123456})");
  EXPECT_EQ(ProgressText(event),
            "epoch 1/10 step 12/620 loss 0.2500 images/s 812 bytes 123456");
}

TEST(ReportTest, MeasurementsAreReported) {
  ClientReport costs = Costs();
  costs.measured = {
      {{absl::Milliseconds(1), absl::Milliseconds(2)}},
      absl::Milliseconds(20),
      LinkSpeed{125e6, absl::Microseconds(90), absl::Microseconds(3)},
      std::nullopt};
  const json done = json::parse(FormatWorkerEvent(ResultOf(costs)));
  EXPECT_EQ(done["measured"], json::parse(R"({
      "step_seconds": 0.02, "link": {"bytes_per_second": 125000000.0,
      "latency_seconds": 0.00009, "message_seconds": 0.000003},
      "memory_bytes_per_second": null, "waits_in_forward": false})"));
  EXPECT_EQ(done["layers"][0]["forward_seconds"], 0.001);
  EXPECT_EQ(done["layers"][0]["backward_seconds"], 0.002);
  // A worker that measures the memory of its host measures no link.
  costs.measured->link.reset();
  costs.measured->memory_rate = 5e9;
  const json memory = json::parse(FormatWorkerEvent(ResultOf(costs)));
  EXPECT_EQ(memory["measured"]["link"], nullptr);
  EXPECT_EQ(memory["measured"]["memory_bytes_per_second"], 5e9);
}

TEST(ReportTest, DoneHasEveryField) {
  const json expected = json::parse(R"({
      "event": "done", "rank": 1, "joins": 1, "workers": 4, "steps": 620,
      "last_step": 619, "saved_round": null,
      "skipped_steps": 0, "train_loss": 0.5,
      "test_accuracy": null, "images": 19840,
      "seconds": 40.0, "forward_seconds": 10.0, "backward_seconds": 20.0,
      "wait_seconds": 5.0, "turn_seconds": 3.0,
      "parameter_checksum": "00ab12cd",
      "initial_bytes": 77, "measured": null,
      "layers": [{"name": "fc1", "kind": "fc", "m": 2, "n": 3,
                  "parameters": 8, "rows": 32, "has_factors": true,
                  "scheme": "factor",
                  "wire": "fp32",
                  "reason": "12 < 34", "rounds": 4, "bytes_sent": 100,
                  "bytes_received": 200, "latency_seconds_mean": 0.005}],
      "traffic": [
          {"peer": "shard", "rank": 0, "bytes_sent": 1, "bytes_received": 2},
          {"peer": "worker", "rank": 3, "bytes_sent": 4, "bytes_received": 5}]
  })");
  const std::string line = FormatWorkerEvent(ResultOf(Costs()));
  EXPECT_EQ(json::parse(line), expected);
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(ReportTest, AccuracyIsANumberIfItWasMeasured) {
  WorkerResult report = ResultOf(Costs());
  report.test_accuracy = 0.985;
  EXPECT_EQ(json::parse(FormatWorkerEvent(report))["test_accuracy"], 0.985);
  EXPECT_THAT(DoneText(report)[0], HasSubstr("test accuracy 0.9850"));
  EXPECT_THAT(DoneText(ResultOf(Costs()))[0],
              HasSubstr("test accuracy not measured"));
}

TEST(ReportTest, TextHasALinePerLayer) {
  const std::vector<std::string> lines = DoneText(ResultOf(Costs()));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("620 steps in 40.00 s"));
  EXPECT_THAT(lines[0], HasSubstr("wait 5.00, turn 3.00), 496 images/s"));
  EXPECT_THAT(lines[1],
              HasSubstr("layer fc1: scheme factor, wire fp32, 4 rounds"));
  EXPECT_THAT(lines[1], HasSubstr("mean latency 5.00 ms; 12 < 34"));
}

TEST(ReportTest, AWorkerWithADeviceOfItsOwnHasNoTurns) {
  WorkerResult report = ResultOf(Costs());
  report.seconds.turn = 0;
  EXPECT_THAT(DoneText(report)[0], HasSubstr("wait 5.00), 496 images/s"));
}

TEST(ReportTest, SkippedStepsAreReported) {
  WorkerResult report = ResultOf(Costs());
  report.steps.skipped = 3;
  EXPECT_EQ(json::parse(FormatWorkerEvent(report))["skipped_steps"], 3);
  EXPECT_THAT(DoneText(report)[0], HasSubstr("620 steps (3 skipped) in"));
}

TEST(ReportTest, ValuesThatJsonCannotHoldAreReplaced) {
  ClientReport costs = Costs();
  costs.layers[0].reason = "\xff\xfe";
  costs.layers[0].rounds = 0;
  WorkerResult report = ResultOf(costs);
  report.steps.train_loss = std::nan("");
  const json parsed = json::parse(FormatWorkerEvent(report));
  EXPECT_TRUE(parsed["train_loss"].is_null());
  EXPECT_EQ(parsed["layers"][0]["reason"], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(parsed["layers"][0]["latency_seconds_mean"], 0.0);
}

TEST(ReportTest, BytesSentAndReceivedAreSummed) {
  EXPECT_EQ(TotalBytes({}), 0);
  EXPECT_EQ(TotalBytes(Costs().peers), 12);
}

}  // namespace
}  // namespace nereus
