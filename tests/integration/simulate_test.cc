// Runs `nereusctl simulate` as a user does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr char kProgram[] = "server/admin/nereusctl";

struct Result {
  int exit_code = -1;
  std::string output;
  std::string error;
};

Result Simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kProgram, "simulate"});
  ProgramRun run(arguments);
  Result result;
  result.exit_code = run.Finish();
  result.output = run.output();
  result.error = run.error();
  return result;
}

std::string WriteTestFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(SimulateTest, AnswerIsJsonOnRequest) {
  const Result result = Simulate(
      {"--model=vgg19-22k", "--workers=16", "--servers=colocated",
       "--bandwidth=10Gbit", "--latency=20us", "--batch=32", "--compute=0.925s",
       "--backward-share=0.667", "--cost=bytes", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  const double iteration = json.at("iteration_seconds");
  EXPECT_GT(iteration, 0.925);
  EXPECT_NEAR(json.at("speedup"), 16 * 0.925 / iteration, 1e-6);
  EXPECT_GT(json.at("speedup"), 14.5);
  EXPECT_NEAR(json.at("network_exposed_seconds"),
              iteration - json.at("compute_seconds").get<double>(), 1e-9);
  EXPECT_EQ(json.at("bytes_by_node").size(), 16u);
  int64_t sum = 0;
  for (const auto& layer : json.at("layers")) {
    sum += layer.at("node_bytes").get<int64_t>();
  }
  EXPECT_EQ(json.at("node_bytes"), sum);
  EXPECT_EQ(json.at("layers").back().at("scheme"), "factor");
  EXPECT_EQ(json.at("bandwidth_bits_per_second"), 10e9);

  ProgramRun plan({kProgram, "plan", "--model=vgg19-22k", "--workers=16",
                   "--cost=bytes", "--json"});
  ASSERT_EQ(plan.Finish(), 0) << plan.error();
  // The plan counts no headers. Each frame has a header of 64 bytes, for at
  // most 256 KiB of payload.
  const double planned = nlohmann::json::parse(plan.output())
                             .at("totals")
                             .at("busiest_node_bytes_planned");
  EXPECT_NEAR(static_cast<double>(sum) / planned, 1.0, 0.001);
}

// Each worker sends three quarters of the model twice, and receives as much.
TEST(SimulateTest, RingNeedsNoServerBandwidth) {
  const Result result = Simulate({"--model=vgg19", "--workers=4", "--servers=1",
                                  "--compute=0.1s", "--json", "--scheme=ring"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  ASSERT_EQ(json["bytes_by_node"].size(), 4u);
  for (const auto& bytes : json["bytes_by_node"]) {
    EXPECT_NEAR(bytes.get<double>(), 4 * 0.75 * 4 * 143667240.0, 2e6);
  }
}

// The ring has two hosts: half of the layer travels twice each way.
TEST(SimulateTest, WorkersOfAHostShareItsLinkAndItsMemory) {
  std::vector<std::string> question = {"--model=vgg19", "--workers=4",
                                       "--hosts=2",     "--bandwidth=1Gbit",
                                       "--scheme=ring", "--compute=0.1s"};
  const Result text = Simulate(question);
  ASSERT_EQ(text.exit_code, 0) << text.error;
  EXPECT_THAT(text.output, HasSubstr("; 4 workers on 2 machines are "));
  EXPECT_THAT(text.output, HasSubstr("add up their gradients in memory"));
  EXPECT_THAT(text.output, HasSubstr("speed-up over one worker"));
  question.push_back("--json");
  const auto json = nlohmann::json::parse(Simulate(question).output);
  EXPECT_EQ(json["hosts"], 2);
  EXPECT_TRUE(json["memory_bits_per_second"].is_null());
  ASSERT_EQ(json["bytes_by_node"].size(), 2u);
  for (const auto& bytes : json["bytes_by_node"]) {
    EXPECT_NEAR(bytes.get<double>(), 4 * 0.5 * 4 * 143667240.0, 2e6);
  }
  question.push_back("--memory-bandwidth=100Mbit");
  const auto slow = nlohmann::json::parse(Simulate(question).output);
  EXPECT_EQ(slow["memory_bits_per_second"], 1e8);
  EXPECT_GT(slow["iteration_seconds"],
            5 * json["iteration_seconds"].get<double>());
}

// `nereusctl plan` and `nereusctl simulate` get the same flags.
TEST(SimulateTest, PlanHasTheSameAnswer) {
  const std::vector<std::string> question = {
      "--model=bert-base", "--workers=8",   "--batch=8",
      "--compute=0.1s",    "--latency=1ms", "--json"};
  const Result simulated = Simulate(question);
  ASSERT_EQ(simulated.exit_code, 0) << simulated.error;
  std::vector<std::string> arguments = {kProgram, "plan"};
  arguments.insert(arguments.end(), question.begin(), question.end());
  ProgramRun run(arguments);
  ASSERT_EQ(run.Finish(), 0) << run.error();
  const auto simulation = nlohmann::json::parse(simulated.output);
  const auto plan = nlohmann::json::parse(run.output());
  EXPECT_EQ(simulation["cost"], plan["cost"]);
  for (size_t i = 0; i < plan["layers"].size(); ++i) {
    EXPECT_EQ(simulation["layers"][i]["scheme"], plan["layers"][i]["scheme"]);
    EXPECT_EQ(simulation["layers"][i]["reason"], plan["layers"][i]["reason"]);
  }
  EXPECT_EQ(simulation["verdict"], plan["verdict"]);
  const double seconds = simulation["iteration_seconds"];
  EXPECT_NEAR(plan["time"]["iteration_seconds"].get<double>() / seconds, 1,
              0.06);
}

TEST(SimulateTest, StepsAreMeasuredUntilTheirTimesRepeat) {
  const auto seconds = [](const std::string& iterations) {
    const Result result = Simulate({"--model=resnet-50", "--workers=8",
                                    "--compute=0.1s", "--delay=turn:0.05s",
                                    "--iterations=" + iterations, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output)["iteration_seconds"]
        .get<double>();
  };
  const double steady = seconds("40");
  EXPECT_NEAR(seconds("0"), steady, 0.01 * steady);
  EXPECT_GT(std::abs(seconds("1") - steady), 0.02 * steady);
}

TEST(SimulateTest, AnswerBeginsWithTheLimitOfAStep) {
  const Result late =
      Simulate({"--model=alexnet", "--workers=4", "--bandwidth=unlimited",
                "--compute=0.1s", "--delay=2:310ms"});
  EXPECT_THAT(late.output,
              testing::StartsWith("An iteration takes 0.4100 s; 4 machines are "
                                  "SLOWER than one, 0.98 of its speed: "));
  EXPECT_THAT(late.output, HasSubstr("limited by late workers, which add 0.3"));
}

// late_seconds is the time that an iteration would save if no worker were late.
// Partial rounds make it smaller.
TEST(SimulateTest, LateSecondsAreTheTimeThatLateWorkersAdd) {
  const std::vector<std::string> question = {"--model=googlenet", "--workers=4",
                                             "--compute=0.1s", "--json",
                                             "--bandwidth=20Gbit"};
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = question;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Result result = Simulate(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output);
  };
  const auto punctual = ask({});
  const auto late = ask({"--delay=turn:0.3s"});
  EXPECT_NEAR(late["late_seconds"].get<double>(),
              late["iteration_seconds"].get<double>() -
                  punctual["iteration_seconds"].get<double>(),
              1e-9);
  EXPECT_EQ(late["verdict"]["advice"][0]["flag"], "--quorum=majority");
  const auto partial = ask({"--delay=turn:0.3s", "--quorum=majority"});
  EXPECT_LT(partial["late_seconds"], late["late_seconds"]);
}

TEST(SimulateTest, DelayMakesWorkersLate) {
  const Result result =
      Simulate({"--model=alexnet", "--workers=4", "--bandwidth=unlimited",
                "--latency=0s", "--compute=0.1s", "--scheme=server",
                "--delay=0:0.2s", "--delay=2:300ms", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_NEAR(json["iteration_seconds"].get<double>(), 0.4, 1e-6);
  EXPECT_EQ(json["delay_seconds"]["2"], 0.3);
}

double IterationSeconds(std::vector<std::string> more) {
  std::vector<std::string> arguments = {
      "--model=alexnet", "--workers=4",     "--bandwidth=1Gbit",
      "--compute=0.1s",  "--scheme=server", "--iterations=4",
      "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Result result = Simulate(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return nlohmann::json::parse(result.output)["iteration_seconds"];
}

TEST(SimulateTest, SixteenBitsHalveTheTimeOfTheNetwork) {
  const double full = IterationSeconds({});
  EXPECT_GT(full / IterationSeconds({"--wire=bf16"}), 1.8);
  EXPECT_GT(full / IterationSeconds({"--wire=fp16"}), 1.8);
}

TEST(SimulateTest, TenthOfTheBlocksTakesLessThanAFifthOfTheTime) {
  const double dense = IterationSeconds({});
  EXPECT_GT(dense / IterationSeconds({"--sparsity=0.9"}), 5);
  EXPECT_NEAR(IterationSeconds({"--sparsity=0"}), dense, 1e-9);
}

TEST(SimulateTest, PartialRoundsHideLateWorkers) {
  const auto with = [&](std::vector<std::string> more) {
    more.push_back("--delay=turn:3s");
    more.push_back("--waits-at-end");
    return IterationSeconds(more);
  };
  // The network takes 3 s per step.
  const double all = with({});
  EXPECT_NEAR(all - IterationSeconds({"--waits-at-end"}), 3, 0.2);
  EXPECT_GT(all / with({"--quorum=solo"}), 1.3);
  EXPECT_GT(all / with({"--quorum=each"}), 1.3);
  // With this staleness no worker may be ahead of another one. So rounds wait
  // for all workers, and the time is that of full rounds.
  EXPECT_NEAR(with({"--quorum=solo", "--staleness=0"}), all, 0.1);
}

TEST(SimulateTest, FusionSavesMessagesAndIsTuned) {
  std::string table = "name,kind,m,n,parameters,rows_per_sample\n";
  for (int i = 0; i < 160; ++i) {
    table += "v" + std::to_string(i) + ",vector,1,1024,1024,1\n";
  }
  const std::string model = WriteTestFile("small.csv", table);
  const auto seconds = [&](const std::string& fusion) {
    const Result result =
        Simulate({"--model=" + model, "--workers=4", "--bandwidth=1Gbit",
                  "--compute=0.006s", "--scheme=ring", "--message-time=30us",
                  "--fusion=" + fusion, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output)["iteration_seconds"]
        .get<double>();
  };
  const double off = seconds("off");
  double best = seconds("0");
  for (const char* fixed : {"16384", "65536", "262144", "1048576"}) {
    best = std::min(best, seconds(fixed));
  }
  EXPECT_GT(off / best, 1.5);
  EXPECT_LE(seconds("auto"), 1.05 * best);
}

TEST(SimulateTest, ConflictingOptionsAreRefusedWithTheReason) {
  const Result ring =
      Simulate({"--model=alexnet", "--workers=4", "--compute=0.1s",
                "--quorum=solo", "--scheme=ring"});
  EXPECT_EQ(ring.exit_code, 2);
  EXPECT_THAT(ring.error,
              HasSubstr("the contributions of all workers, not quorum solo"));
  const Result fusion = Simulate(
      {"--model=alexnet", "--workers=4", "--compute=0.1s", "--fusion=some"});
  EXPECT_EQ(fusion.exit_code, 2);
  EXPECT_THAT(fusion.error, HasSubstr("is not off, auto or a number"));
}

TEST(SimulateTest, TableIsPrintedAndJsonIsWrittenToAFile) {
  const Result table =
      Simulate({"--model=googlenet", "--workers=2", "--servers=1",
                "--compute=0.5s", "--overlap=none", "--host-copy=0.1s"});
  EXPECT_EQ(table.exit_code, 0) << table.error;
  EXPECT_THAT(table.output, HasSubstr("googlenet: 2 workers, 1 servers"));
  EXPECT_THAT(table.output, HasSubstr("speed-up over one node"));

  const std::string path = testing::TempDir() + "/simulate.json";
  const Result written = Simulate(
      {"--model=googlenet", "--workers=2", "--compute=0.5s", "--json=" + path});
  EXPECT_EQ(written.exit_code, 0) << written.error;
  EXPECT_EQ(written.output, "");
  std::ifstream file(path);
  EXPECT_EQ(nlohmann::json::parse(file).at("model"), "googlenet");
}

TEST(SimulateTest, MeasuredTimesAreUsed) {
  const std::string model =
      WriteTestFile("two.csv",
                    "name,kind,m,n,parameters,rows_per_sample\n"
                    "a,fc,10,10,100,1\nb,fc,10,10,100,1\n");
  const std::string trace = WriteTestFile("trace.json",
                                          R"({"layers": [
           {"name": "b", "forward_seconds": 0.1, "backward_seconds": 0.2},
           {"name": "a", "forward_seconds": 0.3, "backward_seconds": 0.4}]})");
  const Result result = Simulate({"--model=" + model, "--workers=1",
                                  "--compute-trace=" + trace, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_NEAR(json.at("iteration_seconds"), 1.0, 1e-9);
  EXPECT_NEAR(json.at("layers")[0].at("backward_seconds"), 0.4, 1e-9);
}

TEST(SimulateTest, WrongOptionsAreRefusedWithTheReason) {
  const std::string bad = WriteTestFile("bad.json", "{\"layers\": 1}");
  const struct {
    std::vector<std::string> arguments;
    const char* error;
  } cases[] = {
      {{}, "--model is required"},
      {{"--model=vgg19", "--workers=2"},
       "--compute=TIME of one machine's step is not given"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--scheme=x"}, "x"},
      {{"--model=vgg19", "--workers=5000", "--compute=1s"}, "5000"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--servers=some"},
       "\"some\" is neither colocated nor a number"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--delay=1"},
       "--delay: \"\" is not a time"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--delay=one:1s"},
       "\"one:1s\" is not WORKER:SECONDS"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--delay=2:1s"},
       "delay of worker 2: workers are 0 to 1"},
      {{"--model=vgg19", "--workers=2", "--compute=fast"},
       "--compute: \"fast\" is not a time"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--bandwidth=10GB"},
       "--bandwidth: \"10GB\" is not a bandwidth"},
      {{"--model=vgg19", "--workers=2", "--compute=1s", "--latency=-1s"},
       "--latency: \"-1s\" is not a time"},
      {{"--model=none", "--workers=2", "--compute=1s"}, "none"},
      {{"--model=vgg19", "--workers=2", "--compute-trace=/no/such"},
       "cannot open /no/such"},
      {{"--model=vgg19", "--workers=2", "--compute-trace=" + bad},
       "compute trace: layers is number 1, not a list"},
  };
  for (const auto& each : cases) {
    const Result result = Simulate(each.arguments);
    EXPECT_EQ(result.exit_code, 2) << each.error;
    EXPECT_THAT(result.error, HasSubstr(each.error));
    EXPECT_EQ(result.output, "");
  }
}

// Two jobs like this one, of one layer, take turns: see docs/sharing.md.
const std::vector<std::string> kHalfExposed = {
    "--workers=2",  "--servers=colocated", "--bandwidth=1Gbit",
    "--latency=0s", "--scheme=server",     "--compute=0.1s"};

TEST(SimulateTest, JobsThatShareDevicesArePredictedTogether) {
  const std::string model =
      WriteTestFile("one_layer.csv",
                    "name,kind,m,n,parameters,rows_per_sample\nlast,fc,1250,"
                    "1000,1250000,1\n");
  const std::string with =
      WriteTestFile("with.txt", "# The other job.\nmodel = " + model +
                                    "\nscheme = server\ncompute = 0.1s\n");
  std::vector<std::string> arguments = kHalfExposed;
  arguments.insert(arguments.end(),
                   {"--model=" + model, "--with=" + with, "--json"});
  const Result result = Simulate(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  const auto& shared = json.at("shared");
  ASSERT_EQ(shared.at("jobs").size(), 2u);
  const double alone = json.at("iteration_seconds");
  for (const auto& job : shared.at("jobs")) {
    EXPECT_DOUBLE_EQ(job.at("alone_seconds"), alone);
    EXPECT_NEAR(job.at("compute_seconds"), 0.1, 1e-6);
    // Half of 5 MB goes out and half comes in, at each of two nodes, twice.
    EXPECT_NEAR(job.at("link_seconds"), 0.04, 0.002);
    EXPECT_NEAR(job.at("turns_seconds"), 0.2, 1e-3);
    EXPECT_GT(job.at("at_once_seconds"), 0.201);
  }
  EXPECT_NEAR(shared.at("turns_gain"), 2 * alone / 0.2, 0.01);
  EXPECT_EQ(shared.at("limit"), "device");
}

TEST(SimulateTest, FullLinkIsNamedAsTheLimitOfSharing) {
  const std::string model =
      WriteTestFile("large_layer.csv",
                    "name,kind,m,n,parameters,rows_per_sample\nlast,fc,2500,"
                    "2500,6250000,1\n");
  const std::string with =
      WriteTestFile("with_large.txt",
                    "model = " + model + "\nscheme = server\ncompute = 0.1s\n");
  std::vector<std::string> arguments = kHalfExposed;
  arguments.insert(arguments.end(), {"--model=" + model, "--with=" + with});
  const Result result = Simulate(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("The link is busy all the time"));
  EXPECT_THAT(result.output, HasSubstr("--wire=auto"));
}

TEST(SimulateTest, BadFileOfAnotherJobIsRefusedWithItsLine) {
  std::vector<std::string> arguments = kHalfExposed;
  arguments.insert(arguments.end(), {"--model=alexnet", ""});
  const auto refusal = [&](const std::string& text) {
    arguments.back() = "--with=" + WriteTestFile("bad.txt", text);
    const Result result = Simulate(arguments);
    EXPECT_EQ(result.exit_code, 2) << text;
    return result.error;
  };
  EXPECT_THAT(refusal("model = alexnet\nworkers 2\n"),
              HasSubstr("bad.txt: line 2: \"workers 2\" is not NAME = VALUE"));
  EXPECT_THAT(refusal("modle = alexnet\n"),
              HasSubstr("line 1: \"modle\" is not a flag that the file may "
                        "have; did you mean model?"));
  EXPECT_THAT(refusal("model = alexnet\nworkers = 2\n"),
              HasSubstr("line 2: workers is a flag of the cluster"));
  EXPECT_THAT(refusal("model = alexnet\nbatch = 0\n"),
              HasSubstr("batch is \"0\""));
  EXPECT_THAT(refusal("model = alexnet\n"), HasSubstr("--compute"));
  EXPECT_THAT(refusal("model = alexnet\ncompute = 80000s\n"),
              HasSubstr("is more than 1000 times as long"));
}

}  // namespace
}  // namespace nereus
