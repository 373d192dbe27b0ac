#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"

namespace nereus {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Runs `nereusctl plan arguments...`. The exit code is -1 if parsing refuses
// the flags.
Result RunPlan(std::vector<std::string> arguments) {
  CLI::App app;
  const std::unique_ptr<Command> command = MakePlanCommand();
  command->Register(app, /*with_flags=*/true);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  reversed.push_back("plan");
  Result result;
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    result.err = error.what();
    return result;
  }
  std::ostringstream out;
  std::ostringstream err;
  result.exit_code = command->Run(out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

std::string WriteTestFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(PlanCommandTest, PrintsTheTable) {
  const Result result = RunPlan({"--model=vgg19", "--workers=16"});
  EXPECT_EQ(result.exit_code, kExitDone);
  EXPECT_THAT(result.out,
              HasSubstr("\n\nvgg19: 16 workers, 16 servers, batch 32, scheme "
                        "auto, cost time, wire fp32, fusion off\n"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(PlanCommandTest, PrintsJson) {
  const Result result =
      RunPlan({"--model", "googlenet", "--workers", "8", "--servers", "4",
               "--batch", "128", "--scheme", "factor", "--json"});
  EXPECT_EQ(result.exit_code, kExitDone);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["workers"], 8);
  EXPECT_EQ(json["servers"], 4);
  EXPECT_EQ(json["batch"], 128);
  EXPECT_EQ(json["scheme"], "factor");
  EXPECT_EQ(json["layers"].back()["scheme"], "factor");
}

TEST(PlanCommandTest, WritesJsonToAFile) {
  const std::string path = testing::TempDir() + "/plan.json";
  const Result result =
      RunPlan({"--model=vgg19", "--workers=2", "--json=" + path});
  EXPECT_EQ(result.exit_code, kExitDone) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  std::ifstream file(path);
  EXPECT_EQ(nlohmann::json::parse(file)["model"], "vgg19");
}

TEST(PlanCommandTest, UnwritableFileFails) {
  const Result result =
      RunPlan({"--model=vgg19", "--workers=2",
               "--json=" + testing::TempDir() + "/no/such/folder/plan.json"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("cannot write "));
  EXPECT_THAT(result.err, HasSubstr("No such file or directory"));
}

TEST(PlanCommandTest, ReadsAModelFromAFile) {
  const std::string path = WriteTestFile(
      "mine.csv",
      "# mine\nname,kind,m,n,parameters,rows_per_sample\nfc,fc,64,64,4160,2\n");
  const Result result =
      RunPlan({"--model=" + path, "--workers=2", "--batch=3", "--json"});
  ASSERT_EQ(result.exit_code, kExitDone) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["layers"][0]["k"], 6);
}

struct UsageError {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};

class PlanUsageErrorTest : public testing::TestWithParam<UsageError> {};

TEST_P(PlanUsageErrorTest, IsNamed) {
  WriteTestFile(
      "bad.csv",
      "name,kind,m,n,parameters,rows_per_sample\nfc,fc,64,x,4160,2\n");
  WriteTestFile("run.json", "{}");
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& argument : arguments) {
    absl::StrReplaceAll({{"DIR", testing::TempDir()}}, &argument);
  }
  const Result result = RunPlan(arguments);
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, PlanUsageErrorTest,
    testing::Values(UsageError{"BadModelFile",
                               {"--model=DIR/bad.csv", "--workers=2"},
                               "bad.csv: line 2, column 4 (n): \"x\""},
                    UsageError{"MissingModelFile",
                               {"--model=no_such_model.csv", "--workers=2"},
                               "cannot open no_such_model.csv: No such"},
                    UsageError{"FolderInPlaceOfAModelFile",
                               {"--model=DIR/", "--workers=2"},
                               "cannot read "},
                    UsageError{"EndlessModelFile",
                               {"--model=/dev/zero", "--workers=2"},
                               "/dev/zero has more than 16777216 bytes"},
                    UsageError{"UnknownModel",
                               {"--model=vgg", "--workers=2"},
                               "known are alexnet, bert-base, googlenet"},
                    UsageError{
                        "TooManyRows",
                        {"--model=vgg19", "--workers=2", "--batch=1048576"},
                        "rows, at most"},
                    UsageError{"NoModel", {"--workers=2"}, "--"},
                    UsageError{"NoWorkers", {"--model=vgg19"}, "--"},
                    UsageError{"TwoTimesOfComputing",
                               {"--model=vgg19", "--workers=2", "--explain",
                                "--compute=1s", "--compute-trace=x"},
                               "--"},
                    UsageError{"MoreHostsThanWorkers",
                               {"--model=vgg19", "--workers=2", "--hosts=3"},
                               "hosts is 3, of 2 workers"},
                    UsageError{"HostsOfPartialRounds",
                               {"--model=vgg19", "--workers=8", "--hosts=2",
                                "--quorum=majority", "--staleness=2"},
                               "--hosts needs --quorum=all"},
                    UsageError{"MissingRun",
                               {"--explain", "--run=no_such_run.json"},
                               "no_such_run.json"},
                    UsageError{"EmptyRun",
                               {"--explain", "--run=DIR/run.json"},
                               "run.json: run: plan is missing"}),
    [](const auto& info) { return std::string(info.param.name); });

// Four workers of a host hand each other gradients and results.
TEST(PlanCommandTest, SlowMemoryOfAHostCountsInThePlan) {
  std::vector<std::string> question = {
      "--model=vgg19",  "--workers=8",     "--hosts=2", "--bandwidth=10Gbit",
      "--compute=0.5s", "--scheme=server", "--explain", "--json"};
  const auto ask = [&] {
    const Result result = RunPlan(question);
    EXPECT_EQ(result.exit_code, kExitDone) << result.err;
    return nlohmann::json::parse(result.out)["time"];
  };
  const nlohmann::json fast = ask();
  EXPECT_TRUE(fast["memory_bytes_per_second"].is_null());
  question.push_back("--memory-bandwidth=8Gbit");
  const nlohmann::json slow = ask();
  EXPECT_EQ(slow["memory_bytes_per_second"], 1e9);
  // 6 times 575 MB, beside what the worker on the server's host sends it.
  EXPECT_GT(slow["iteration_seconds"], 3.4);
  EXPECT_LT(fast["iteration_seconds"], 1.5);
  question.pop_back();
  question.back() = "--memory-bandwidth=8Gbit";
  const Result text = RunPlan(question);
  EXPECT_THAT(text.out, HasSubstr("\nmemory of 1e+09 bytes/s; 500"));
}

TEST(PlanCommandTest, ExplainShowsTheIterationForEachScheme) {
  const Result result =
      RunPlan({"--model=vgg19", "--workers=16", "--bandwidth=1Gbit",
               "--compute=0.5s", "--explain", "--json"});
  ASSERT_EQ(result.exit_code, kExitDone) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["cost"], "time");
  EXPECT_EQ(json["verdict"]["limited_by"], "network");
  const nlohmann::json& time = json["time"];
  EXPECT_EQ(time["link"]["bytes_per_second"], 125e6);
  const double iteration = time["iteration_seconds"];
  EXPECT_GT(iteration, 0.5);
  ASSERT_EQ(time["layers"].size(), json["layers"].size());
  for (const auto& layer : time["layers"]) {
    // No other scheme of one layer saves more than a hundredth of the
    // iteration.
    for (const auto& [scheme, seconds] : layer["iteration_seconds"].items()) {
      if (seconds.is_null()) continue;
      EXPECT_GE(seconds.get<double>(), 0.99 * iteration) << layer;
    }
    EXPECT_NEAR(layer["iteration_seconds"][layer["scheme"].get<std::string>()]
                    .get<double>(),
                iteration, 1e-9);
    EXPECT_TRUE(layer["sync_seconds_measured"].is_null());
  }
  const Result text =
      RunPlan({"--model=vgg19", "--workers=16", "--compute=0.5s", "--explain"});
  EXPECT_THAT(text.out, HasSubstr("An iteration: "));
}

TEST(PlanCommandTest, ReasonForASchemeNamesTheTimesOfAnIteration) {
  const Result result = RunPlan(
      {"--model=vgg19", "--workers=16", "--bandwidth=1Gbit", "--compute=0.5s"});
  ASSERT_EQ(result.exit_code, kExitDone) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("\n  fc6: [a-z]+ \\([0-9.]+ ms an "
                                        "iteration; by [a-z]+ [0-9.]+, by "
                                        "[a-z]+ [0-9.]+\\)\n"));
}

TEST(PlanCommandTest, TextBeginsWithTheLimitAndFlagsThatHelp) {
  const Result slow = RunPlan({"--model=bert-base", "--workers=8", "--batch=8",
                               "--bandwidth=1Gbit", "--compute=0.1s"});
  EXPECT_THAT(slow.out, StartsWith("An iteration takes 6."));
  EXPECT_THAT(slow.out, HasSubstr("8 machines are SLOWER than one, 0.13 of"));
  EXPECT_THAT(slow.out, HasSubstr("limited by the network, which adds 6."));
  EXPECT_THAT(slow.out, HasSubstr("each alone: --wire=bf16 by about 3."));
  const Result fast =
      RunPlan({"--model=vgg19-22k", "--workers=16", "--compute=0.925s"});
  EXPECT_THAT(fast.out, HasSubstr("16 machines are 15.64 times as fast as one: "
                                  "limited by computing, 0.9"));
  const Result unknown = RunPlan({"--model=alexnet", "--workers=4"});
  EXPECT_THAT(unknown.out, HasSubstr("for the network alone; with --compute="));
  // Flags that save time of the network are named even without --compute.
  EXPECT_THAT(unknown.out, HasSubstr("each alone: --wire=bf16 by about "));
}

TEST(PlanCommandTest, FewerHostsForTheSameWorkersShortenTheIteration) {
  const std::vector<std::string> question = {
      "--model=bert-base",  "--workers=32",   "--batch=8",
      "--bandwidth=10Gbit", "--compute=0.1s", "--json"};
  const auto seconds = [&](const std::string& flag) {
    std::vector<std::string> arguments = question;
    arguments.push_back(flag);
    const Result result = RunPlan(arguments);
    EXPECT_EQ(result.exit_code, kExitDone) << result.err;
    return nlohmann::json::parse(result.out)["time"]["iteration_seconds"]
        .get<double>();
  };
  EXPECT_EQ(seconds("--hosts=32"), seconds("--servers=colocated"));
  EXPECT_LT(seconds("--hosts=4"), seconds("--hosts=8"));
  EXPECT_LT(seconds("--hosts=8"), seconds("--hosts=32"));
  const Result json =
      RunPlan({"--model=vgg19", "--workers=8", "--hosts=2", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["servers"], 2);
  EXPECT_EQ(nlohmann::json::parse(json.out)["workers_by_host"],
            nlohmann::json({4, 4}));
}

TEST(PlanCommandTest, DiagnosisNamesTheNumbersOfWorkersAndMachines) {
  const std::vector<std::string> question = {"--model=vgg19", "--workers=8",
                                             "--compute=0.5s"};
  const auto answer = [&](const std::string& hosts) {
    std::vector<std::string> arguments = question;
    arguments.push_back(hosts);
    return RunPlan(arguments).out;
  };
  EXPECT_THAT(answer("--hosts=2"),
              ContainsRegex("; 8 workers on 2 machines are [0-9.]+ times as "
                            "fast as one worker: "));
  EXPECT_THAT(answer("--hosts=2"),
              HasSubstr("add up their gradients in memory"));
  EXPECT_THAT(answer("--hosts=1"),
              HasSubstr("; 8 workers on 1 machine are 8.00 times as fast as "
                        "one worker: limited by computing"));
  EXPECT_THAT(answer("--hosts=8"),
              ContainsRegex("; 8 machines are [0-9.]+ times as fast as one: "));
}

TEST(PlanCommandTest, EqualLayersShareALineUnlessAllAreAskedFor) {
  const std::string row = "bert.encoder.layer.0.intermediate.dense";
  const Result folded = RunPlan({"--model=bert-base", "--workers=2"});
  EXPECT_THAT(folded.out, HasSubstr(row + " and 11 like it  "));
  EXPECT_THAT(folded.out,
              testing::Not(HasSubstr("encoder.layer.5.intermediate")));
  const Result all =
      RunPlan({"--model=bert-base", "--workers=2", "--all-layers"});
  EXPECT_THAT(all.out, HasSubstr(row + "  "));
  EXPECT_THAT(all.out, HasSubstr("encoder.layer.5.intermediate"));
}

TEST(PlanCommandTest, ImpossibleFlagsAreRefused) {
  const std::vector<std::vector<std::string>> kCases = {
      {"--model=vgg19", "--workers=0"},
      {"--model=vgg19", "--workers=65537"},
      {"--model=vgg19", "--workers=two"},
      {"--model=vgg19", "--workers=2", "--servers=-1"},
      {"--model=vgg19", "--workers=2", "--hosts=0"},
      {"--model=vgg19", "--workers=2", "--bandwidth=10GB"},
      {"--model=vgg19", "--workers=2", "--batch=0"},
      {"--model=vgg19", "--workers=2", "--scheme=star"},
      {"--model=vgg19", "--workers=2", "--cost=money"},
      {"--model=vgg19", "--workers=2", "--sevrers=2"},
  };
  for (const auto& arguments : kCases) {
    const Result result = RunPlan(arguments);
    EXPECT_EQ(result.exit_code, -1) << testing::PrintToString(arguments);
    EXPECT_FALSE(result.err.empty());
  }
}

}  // namespace
}  // namespace nereus
