#include "server/admin/local_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns the options of a job with two workers and one shard. The shard is in
// the node of worker 0.
LocalOptions Options() {
  LocalOptions options;
  options.spec.workers = 2;
  options.spec.shards = 1;
  options.spec.rules.cost = CostKind::kBytes;
  options.training["model"] = "tiny";
  options.training["batch"] = "4";
  return options;
}

// Returns the result of each layer after ten steps. By table 1 of Zhang et al.,
// "Poseidon", conv goes by the server, and fc by factors: 2 * 4 * 1 * (10 + 64)
// = 592 elements are fewer than 2 * 640 * 1 / 1 = 1280.
std::vector<LayerResult> Layers() {
  LayerResult conv;
  conv.spec = {"conv", LayerKind::kConvolution, 2, 3, 8, 4};
  conv.scheme = "server";
  conv.rounds = 10;
  conv.bytes_sent = 1000;
  conv.bytes_received = 500;
  conv.latency_seconds_mean = 0.002;
  LayerResult fc;
  fc.spec = {"fc", LayerKind::kFullyConnected, 10, 64, 650, 4, true};
  fc.scheme = "factor";
  fc.rounds = 10;
  return {conv, fc};
}

// Returns the results of both workers after ten steps. The bytes are counted by
// hand, with 64 bytes of header in each frame.
//   start, worker 1: 2 requests, and 8 and 650 floats: 128 out, 2760 in
//   conv, worker 1, a step: 8 floats each way: 96 out, 96 in
//   fc, either worker, a step: 4 x 10 and 4 x 64 floats: 1312 out, 1312 in
std::vector<WorkerResult> Results() {
  WorkerResult first;
  first.rank = 0;
  first.workers = 2;
  first.steps.done = 10;
  first.test_accuracy = 0.75;
  first.steps.last = 9;
  first.images = 40;
  first.seconds = {/*total=*/4, /*forward=*/1, /*backward=*/2, /*wait=*/0.5,
                   /*turn=*/0};
  first.parameter_checksum = "9ae0daaf";
  first.layers = Layers();
  first.traffic = {{true, 0, 111, 222}, {false, 1, 13120, 13120}};
  first.json = R"({"event":"done","rank":0})";

  WorkerResult second = first;
  second.process = 1;
  second.rank = 1;
  second.test_accuracy = std::nullopt;
  second.seconds.total = 5;
  second.seconds.forward = 3;
  second.seconds.turn = 1;
  second.layers[0].latency_seconds_mean = 0.004;
  second.traffic = {{true, 0, 128 + 960, 2760 + 960}, {false, 0, 13120, 13120}};
  second.json = R"({"event":"done","rank":1})";
  return {second, first};  // In the order of their ends.
}

LocalReport MakeReport(const LocalOptions& options,
                       std::vector<WorkerResult> results) {
  auto report =
      MakeLocalReport(options, LocalOutcome{.workers = std::move(results)});
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

TEST(LocalReportTest, HasSumsMeansAndTheTimeOfTheSlowestWorker) {
  const LocalReport report = MakeReport(Options(), Results());
  EXPECT_EQ(report.workers()[0].rank, 0);
  EXPECT_EQ(report.test_accuracy, 0.75);
  EXPECT_TRUE(report.replicas_equal);
  EXPECT_EQ(report.seconds.total, 5);
  EXPECT_EQ(report.images_per_second, 80 / 5.0);
  EXPECT_EQ(report.seconds.forward, 2);
  EXPECT_EQ(report.seconds.backward, 2);
  EXPECT_EQ(report.seconds.wait, 0.5);
  EXPECT_EQ(report.seconds.turn, 0.5);
}

TEST(LocalReportTest, PredictsTheBytesThatAreCountedByHand) {
  const LocalReport report = MakeReport(Options(), Results());
  EXPECT_THAT(report.bytes.predicted, ElementsAre(31048, 31048));
}

TEST(LocalReportTest, MeasuresEachNodeWithoutTrafficInsideTheNode) {
  std::vector<WorkerResult> results = Results();
  const LocalReport report = MakeReport(Options(), results);
  EXPECT_THAT(report.bytes.measured, ElementsAre(31048, 31048));

  // Traffic of worker 1 with the shard counts for both nodes. Traffic with
  // worker 0 counts for node 1 only, because worker 0 reports its own figure.
  results[0].traffic[0].bytes_sent += 7;
  EXPECT_THAT(MakeReport(Options(), results).bytes.measured,
              ElementsAre(31055, 31055));
  results[0].traffic[1].bytes_sent += 100;
  const LocalReport busier = MakeReport(Options(), results);
  EXPECT_THAT(busier.bytes.measured, ElementsAre(31055, 31155));
  EXPECT_EQ(busier.bytes.busiest_measured(), 31155);
  EXPECT_EQ(busier.bytes.busiest_predicted(), 31048);
}

TEST(LocalReportTest, ShardWithoutAWorkerIsANode) {
  LocalOptions options = Options();
  options.spec.workers = 1;
  options.spec.shards = 2;
  WorkerResult only = Results()[1];
  only.workers = 1;
  only.layers[1].scheme = "server";  // The worker has no peer.
  only.traffic = {{true, 0, 5, 6}, {true, 1, 70, 80}};
  const LocalReport report = MakeReport(options, {only});
  EXPECT_THAT(report.bytes.measured, ElementsAre(150, 150));
}

// Returns the options of a job of four workers on two hosts. By factors fc has
// 4 * (2 * 1 + 2) * (10 + 64) = 1184 elements, fewer than 2 * 640 = 1280.
LocalOptions OptionsOfTwoHosts() {
  LocalOptions options = Options();
  options.spec.workers = 4;
  options.hosts = 2;
  return options;
}

// Returns results of the workers of OptionsOfTwoHosts. Workers 0 and 1 play the
// host of the shard and have the ranks 2 and 0. Worker 3 carries conv. Bytes of
// the other host are counted by hand; bytes within a host are 777.
//   start, workers 2 and 3: 128 out and 2760 in each
//   conv, worker 3, a step: 96 out, 96 in
//   fc, a step: both workers of a host send 1312 bytes to a worker of the other
//   host, of which each receives half
std::vector<WorkerResult> ResultsOfTwoHosts() {
  constexpr int kRanks[] = {2, 0, 1, 3};
  std::vector<WorkerResult> results;
  for (int process = 0; process < 4; ++process) {
    WorkerResult result = Results()[1];
    result.process = process;
    result.rank = kRanks[process];
    result.workers = 4;
    const bool has_shard = process < 2;
    const int mate = kRanks[process ^ 1];
    const int peer = kRanks[process ^ 2];
    const int64_t conv = process == 3 ? 960 : 0;
    result.traffic = {{true, 0, 128 + conv, 2760 + conv},
                      {false, peer, 13120, 13120},
                      {false, mate, 777, 777}};
    if (has_shard) result.traffic[0] = {true, 0, 777, 777};
    results.push_back(result);
  }
  return results;
}

// 2 * (128 + 2760) + 2 * 960 + 2 * 26240 = 60176 bytes. Processes of host 0
// exchange the first values and conv with the shard in memory.
TEST(LocalReportTest, WorkersOfOneHostCountAsOneNode) {
  const LocalReport report =
      MakeReport(OptionsOfTwoHosts(), ResultsOfTwoHosts());
  EXPECT_THAT(report.bytes.measured, ElementsAre(60176, 60176));
  EXPECT_EQ(report.bytes.predicted, report.bytes.measured);
  EXPECT_EQ(report.plan.options.cluster.hosts, 2);
  const auto json =
      nlohmann::json::parse(FormatLocalJson(report), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json.at("hosts"), 2);
  EXPECT_EQ(json.at("nodes").size(), 2u);
  EXPECT_EQ(json.at("plan").at("hosts"), 2);
}

TEST(LocalReportTest, HostOfAWorkerFollowsItsProcessAndNotItsRank) {
  std::vector<WorkerResult> results = Results();
  results[0].rank = 0;
  results[0].traffic[1].rank = 1;
  results[1].rank = 1;
  results[1].traffic[1].rank = 0;
  const LocalReport report = MakeReport(Options(), results);
  // Worker 1 has rank 0, so it sends the first values: two frames, 2760 bytes.
  EXPECT_THAT(report.bytes.measured, ElementsAre(31048, 31048));
  EXPECT_THAT(report.bytes.predicted, ElementsAre(33808, 33808));
}

TEST(LocalReportTest, AsManyHostsAsWorkersIsTheDefault) {
  LocalOptions options = Options();
  options.hosts = 2;
  const LocalReport report = MakeReport(options, Results());
  EXPECT_THAT(report.bytes.predicted, ElementsAre(31048, 31048));
  EXPECT_EQ(report.plan.options.cluster.hosts, 0);
}

TEST(LocalReportTest, PartialRoundsOfSharedHostsAreNotPredicted) {
  LocalOptions options = OptionsOfTwoHosts();
  options.spec.options.rounds.quorum = Quorum::kMajority;
  std::vector<WorkerResult> results = ResultsOfTwoHosts();
  for (WorkerResult& result : results) result.layers[1].scheme = "server";
  const LocalReport report = MakeReport(options, results);
  EXPECT_THAT(report.bytes.measured, ElementsAre(60176, 60176));
  EXPECT_TRUE(report.bytes.predicted.empty());
  EXPECT_EQ(report.plan.options.cluster.hosts, 0);
  EXPECT_THAT(FormatLocalText(report),
              HasSubstr("not predicted, because with --quorum=majority each "
                        "worker of a host sends by itself"));
}

TEST(LocalReportTest, NamesReplicasThatDiffer) {
  std::vector<WorkerResult> results = Results();
  results[0].parameter_checksum = "00000001";
  const LocalReport report = MakeReport(Options(), results);
  EXPECT_FALSE(report.replicas_equal);
  EXPECT_THAT(FormatLocalText(report),
              HasSubstr("DIFFERENT: worker 0 has 9ae0daaf, worker 1 has "
                        "00000001"));
}

struct BadCase {
  const char* name;
  void (*change)(std::vector<WorkerResult>&);
  const char* message;
};

class BadLocalReportTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadLocalReportTest, ContradictionIsRefusedWithBothValues) {
  std::vector<WorkerResult> results = Results();
  GetParam().change(results);
  const auto report =
      MakeLocalReport(Options(), LocalOutcome{.workers = results});
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr(GetParam().message));
}

constexpr BadCase kBadCases[] = {
    {"WorkerMissing", [](auto& r) { r.pop_back(); },
     "1 workers reported, the job has 2"},
    {"RankTwice", [](auto& r) { r[0].rank = 0; },
     "reported as 0 of 2, expected 1 of 2"},
    {"OtherNumberOfWorkers", [](auto& r) { r[0].workers = 3; }, "1 of 3"},
    {"OtherSteps", [](auto& r) { r[0].steps.done = 9; },
     "worker 1 did 9 steps, worker 0 did 10"},
    {"NoSuchShard", [](auto& r) { r[0].traffic[0].rank = 1; },
     "traffic with shard 1, the job has 1"},
    {"NoSuchPeer", [](auto& r) { r[0].traffic[1].rank = 2; },
     "traffic with worker 2, the job has 2"},
    {"OtherModel", [](auto& r) { r[0].layers[0].spec.name = "conv1"; },
     "conv1"},
    {"OtherRoute", [](auto& r) { r[0].layers[1].scheme = "server"; },
     "fc of worker 1 went by server as fp32, the plan says factor as fp32"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadLocalReportTest,
                         testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

TEST(LocalReportTest, JsonHasTheFiguresAndThePlan) {
  const auto json = nlohmann::json::parse(
      FormatLocalJson(MakeReport(Options(), Results())), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json.value("test_accuracy", 0.0), 0.75);
  EXPECT_EQ(json.value("replicas_equal", false), true);
  EXPECT_EQ(json.value("images_per_second", 0.0), 16);
  EXPECT_EQ(json.value("seconds", 0.0), 5);
  EXPECT_EQ(json.value("node_bytes_measured", 0), 31048);
  EXPECT_EQ(json.value("node_bytes_predicted", 0), 31048);
  EXPECT_EQ(json.at("phases").at("forward_seconds"), 2);
  EXPECT_EQ(json.at("phases").at("backward_seconds"), 2);
  EXPECT_EQ(json.at("phases").at("wait_seconds"), 0.5);
  EXPECT_EQ(json.at("phases").at("turn_seconds"), 0.5);
  EXPECT_EQ(json.at("hosts"), 2);
  EXPECT_EQ(json.at("nodes").size(), 2u);
  EXPECT_EQ(json.at("workers").at(1).at("rank"), 1);
  const auto& fc = json.at("plan").at("layers").at(1);
  EXPECT_EQ(fc.at("name"), "fc");
  EXPECT_EQ(fc.at("kind"), "fc");
  EXPECT_EQ(fc.at("scheme"), "factor");
  EXPECT_EQ(fc.at("elements").at("server"), 1280);
  EXPECT_EQ(fc.at("elements").at("factor"), 592);
  EXPECT_EQ(json.at("settings").at("model"), "tiny");
  EXPECT_EQ(json.at("settings").at("batch"), 4);
  EXPECT_EQ(json.at("settings").at("learning_rate"), 0.02);
}

TEST(LocalReportTest, AccuracyThatWasNotMeasuredIsNullInJson) {
  std::vector<WorkerResult> results = Results();
  results[1].test_accuracy = std::nullopt;
  const LocalReport report = MakeReport(Options(), results);
  const auto json =
      nlohmann::json::parse(FormatLocalJson(report), nullptr, false);
  EXPECT_TRUE(json.at("test_accuracy").is_null());
  EXPECT_THAT(FormatLocalText(report), HasSubstr("not measured"));
}

TEST(LocalReportTest, TextHasThePlanTheCostsAndTheFigures) {
  const std::string text = FormatLocalText(MakeReport(Options(), Results()));
  EXPECT_THAT(text, HasSubstr("tiny: 2 workers, 1 servers"));
  EXPECT_THAT(text, HasSubstr("0.002 MB"));  // conv: 1500 bytes
  EXPECT_THAT(text, HasSubstr("3.000 ms"));  // (2 + 4) / 2
  EXPECT_THAT(text, HasSubstr("test accuracy  0.7500"));
  EXPECT_THAT(text, HasSubstr("16.0 by 2 workers, 5.00 s, 10 steps"));
  EXPECT_THAT(text,
              HasSubstr("forward 2.00 s (44%), backward 2.00 s (44%), "
                        "wait 0.50 s (11%), wait for turns 0.50 s (11%)"));
  EXPECT_THAT(text, HasSubstr("31048 bytes measured, 31048 predicted "
                              "(+0.00%)"));
  EXPECT_THAT(text, HasSubstr("equal, checksum 9ae0daaf"));
}

TEST(LocalReportTest, TextNamesTrafficThatTheFiguresLeaveOut) {
  LocalOptions options = Options();
  options.spec.options.checkpoint_every = 10;
  options.spec.options.backup = true;
  EXPECT_THAT(FormatLocalText(MakeReport(options, Results())),
              HasSubstr("31048 predicted without checkpoints (+0.00%); shards' "
                        "copies are not measured"));
}

TEST(LocalProgressTest, ShowsTheSlowestWorkerTheMeanLossAndTheSums) {
  std::vector<std::optional<WorkerProgress>> latest(3);
  EXPECT_EQ(FormatProgress(latest), "starting");
  latest[0] = WorkerProgress{0, 3, 10, 130, 620, 0.5, 100.5, 2000000};
  latest[2] = WorkerProgress{2, 2, 10, 110, 620, 0.25, 50, 500000};
  EXPECT_EQ(FormatProgress(latest),
            "epoch 2/10  step 110/620  loss 0.3750  150.5 images/s  2.500 MB");
}

}  // namespace
}  // namespace nereus
