// The C interface, on real servers: each mistake has an error, and none ends
// the process. The example in C is in examples_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "tests/testing/local_cluster.h"
#include "worker/c_api/nereus.h"

// True in a forked child. What threads of the parent hold counts as a leak
// there, so LeakSanitizer must not look.
static bool is_forked = false;
// Called by LeakSanitizer at the end of the process.
extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier)
  return is_forked ? 1 : 0;
}

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr int64_t kPatienceMs = 120'000;

std::string LastError() { return nereus_last_error(); }

// Returns the text of a function that fills a buffer, by two calls.
template <typename Call>
std::string Text(Call call) {
  int64_t length = -1;
  EXPECT_EQ(call(nullptr, 0, &length), NEREUS_OK) << LastError();
  std::string text(length + 1, '#');
  EXPECT_EQ(call(text.data(), length + 1, &length), NEREUS_OK) << LastError();
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

// Worker with a fully connected layer of 2 x 3 that has factors, and a vector
// of 2 values.
class CWorker {
 public:
  explicit CWorker(const LocalCluster& cluster)
      : CWorker(cluster.coordinator_address()) {}
  explicit CWorker(std::string coordinator)
      : coordinator_(std::move(coordinator)) {
    options.size = sizeof(options);
    options.coordinator_address = coordinator_.c_str();
    layers[0].name = "fc";
    layers[0].kind = NEREUS_LAYER_FULLY_CONNECTED;
    layers[0].m = 2;
    layers[0].n = 3;
    layers[0].has_factors = 1;
    layers[1].name = "scale";
    layers[1].m = 1;
    layers[1].n = 2;
    for (nereus_layer& layer : layers) {
      layer.size = sizeof(layer);
      layer.parameters_count = layer.m * layer.n;
      layer.rows = 1;
    }
    layers[0].parameters = fc.data();
    layers[1].parameters = scale.data();
    step.size = sizeof(step);
  }
  ~CWorker() { nereus_client_close(client); }

  nereus_code Connect() {
    return nereus_client_connect(&options, layers.data(),
                                 static_cast<int32_t>(layers.size()),
                                 /*stream=*/nullptr, &client);
  }
  // Connects, and waits until the worker has joined.
  void Join() {
    ASSERT_EQ(Connect(), NEREUS_OK) << LastError();
    ASSERT_EQ(nereus_client_wait_connected(client, kPatienceMs, nullptr),
              NEREUS_OK)
        << LastError();
  }
  nereus_code BeginStep(int64_t timeout_ms = kPatienceMs) {
    return nereus_client_begin_step(client, timeout_ms, nullptr, &step);
  }
  nereus_code PushScale() {
    gradient = {1.0f, 2.0f};
    return nereus_client_push(client, 1, step.step, gradient.data(), 2,
                              nullptr);
  }
  nereus_code PushFactors() {
    nereus_factors factors = {};
    factors.size = sizeof(factors);
    factors.output_gradient = output_gradient.data();
    factors.output_gradient_length = 2;
    factors.input = input.data();
    factors.input_length = 3;
    return nereus_client_push_factors(client, 0, step.step, &factors,
                                      fc_mean.data(), 6, nullptr);
  }
  nereus_code PushAll() {
    const nereus_code code = PushScale();
    return code == NEREUS_OK ? PushFactors() : code;
  }
  nereus_code WaitAll(int64_t timeout_ms = kPatienceMs) {
    return nereus_client_wait_all(client, step.step, timeout_ms, nullptr);
  }
  // Returns the text of the client's last failed call.
  std::string Error() const {
    return Text([&](char* text, int64_t capacity, int64_t* length) {
      return nereus_client_error(client, text, capacity, length);
    });
  }

  nereus_client_options options = {};
  std::vector<nereus_layer> layers = std::vector<nereus_layer>(2);
  nereus_step step = {};
  nereus_client* client = nullptr;
  std::vector<float> fc = std::vector<float>(6, 0.0f);
  std::vector<float> scale = {0.0f, 0.0f};
  std::vector<float> gradient = {0.0f, 0.0f};
  std::vector<float> output_gradient = {1.0f, 2.0f};
  std::vector<float> input = {1.0f, 0.0f, -1.0f};
  std::vector<float> fc_mean = std::vector<float>(6, 0.0f);

 private:
  const std::string coordinator_;
};

ServerOptions Workers(int count) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = count;
  options.spec.options.optimizer.learning_rate = 1.0f;
  options.spec.options.optimizer.momentum = 0.0f;
  return options;
}

// A job of one worker that has joined.
class CApiTest : public testing::Test {
 protected:
  CApiTest() : cluster_(Workers(1)), worker_(cluster_) { worker_.Join(); }

  LocalCluster cluster_;
  CWorker worker_;
};

TEST(CApiLibraryTest, VersionsAreThoseOfTheSource) {
  EXPECT_EQ(nereus_abi_version(), NEREUS_ABI_VERSION);
  EXPECT_STREQ(nereus_version(), kVersion);
}

TEST(CApiLibraryTest, LogLinesAreTakenInOrderAndLossIsSaid) {
  EXPECT_EQ(nereus_collect_log(-1), NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_set_log_level(4), NEREUS_INVALID_ARGUMENT);
  ASSERT_EQ(nereus_collect_log(2), NEREUS_OK);
  for (const char* line : {"one", "two", "three"}) NEREUS_LOG(Error) << line;
  ASSERT_EQ(nereus_set_log_level(NEREUS_LOG_ERROR), NEREUS_OK);
  NEREUS_LOG(Info) << "below the level";
  ASSERT_EQ(nereus_set_log_level(NEREUS_LOG_INFO), NEREUS_OK);
  std::vector<std::pair<int32_t, std::string>> lines;
  int32_t level = 0;
  char text[80];
  int64_t length = 0;
  while (nereus_next_log_line(&level, text, sizeof(text), &length) ==
         NEREUS_OK) {
    lines.emplace_back(level, text);
  }
  EXPECT_EQ(nereus_next_log_line(&level, text, sizeof(text), &length),
            NEREUS_NOT_FOUND);
  EXPECT_THAT(lines, ElementsAre(Pair(NEREUS_LOG_WARNING,
                                      HasSubstr("1 log lines are lost")),
                                 Pair(NEREUS_LOG_ERROR, "two"),
                                 Pair(NEREUS_LOG_ERROR, "three")));
  EXPECT_EQ(nereus_next_log_line(nullptr, text, 8, &length),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_collect_log(0), NEREUS_OK);
}

TEST(CApiLibraryTest, ALogLineThatDoesNotFitIsNotLost) {
  ASSERT_EQ(nereus_collect_log(3), NEREUS_OK);
  for (const char* line : {"a long line", "fits", ""}) {
    NEREUS_LOG(Error) << line;
  }
  int32_t level = 0;
  char text[6] = "";
  int64_t length = 0;
  const auto expect = [&](int64_t capacity, const char* expected,
                          int64_t expected_length) {
    EXPECT_EQ(nereus_next_log_line(&level, text, capacity, &length), NEREUS_OK);
    EXPECT_STREQ(text, expected);
    EXPECT_EQ(length, expected_length);
    EXPECT_EQ(level, NEREUS_LOG_ERROR);
  };
  expect(0, "", 11);
  expect(6, "a lon", 11);
  expect(6, "g lin", 6);
  expect(1, "", 1);
  expect(6, "e", 1);
  expect(6, "fits", 4);
  expect(0, "fits", 0);
  expect(6, "", 0);
  EXPECT_EQ(nereus_next_log_line(&level, text, 6, &length), NEREUS_NOT_FOUND);
  EXPECT_EQ(nereus_collect_log(0), NEREUS_OK);
}

TEST(CApiLibraryTest, EachFunctionRefusesAClientThatIsNone) {
  auto* const wrong = reinterpret_cast<nereus_client*>(uintptr_t{1} << 40);
  for (nereus_client* client : {static_cast<nereus_client*>(nullptr), wrong}) {
    nereus_step step = {};
    nereus_traits traits = {};
    const float* mean = nullptr;
    int64_t length = 0;
    int32_t flag = 0;
    int64_t rows = 0;
    for (const nereus_code code :
         {nereus_client_wait_connected(client, 0, nullptr),
          nereus_client_error(client, nullptr, 0, &length),
          nereus_client_traits(client, &traits),
          nereus_client_begin_step(client, 0, nullptr, &step),
          nereus_client_push(client, 0, 0, nullptr, 0, nullptr),
          nereus_client_push_factors(client, 0, 0, nullptr, nullptr, 0,
                                     nullptr),
          nereus_client_set_factor_rows(client, &rows, 1),
          nereus_client_factor_rows(client, 0, &rows),
          nereus_client_wait(client, 0, 0, 0, nullptr),
          nereus_client_wait_forward(client, 0, 0, nullptr),
          nereus_client_wait_all(client, 0, 0, nullptr),
          nereus_client_mean(client, 0, &mean, &length),
          nereus_client_skipped(client, 0, &flag),
          nereus_client_checkpoint(client),
          nereus_client_gather(client, "a", 1, 0, &flag),
          nereus_client_gathered(client, 0, nullptr, 0, &length),
          nereus_client_report_json(client, nullptr, 0, &length),
          nereus_client_abort(client, "reason"),
          nereus_client_leave(client, 0, nullptr)}) {
      EXPECT_EQ(code, NEREUS_INVALID_ARGUMENT);
      EXPECT_THAT(LastError(),
                  HasSubstr(client == nullptr ? "client is NULL"
                                              : "client is no open client"));
    }
    nereus_client_close(client);
  }
}

// Change of what a worker passes to nereus_client_connect, and its error.
struct WrongField {
  void (*change)(CWorker&);
  const char* says;
};

const WrongField kWrongFields[] = {
    {[](CWorker& w) { w.options.size = 8; }, "options.size is 8"},
    {[](CWorker& w) { w.layers[0].size += 4; },
     "layers[0].size is 84, must be a multiple of 8"},
    {[](CWorker& w) { w.options.optimizer = 3; }, "options.optimizer is 3"},
    {[](CWorker& w) { w.options.memory = -1; }, "options.memory is -1"},
    {[](CWorker& w) { w.options.scales_loss = 2; }, "options.scales_loss is 2"},
    {[](CWorker& w) { w.options.without_state = 2; },
     "options.without_state is 2"},
    {[](CWorker& w) { w.options.rank = 1; },
     "options.rank is 1, and options.has_rank is 0"},
    {[](CWorker& w) {
       w.options.has_rank = 1;
       w.options.rank = -1;
     },
     "rank is -1"},
    {[](CWorker& w) { w.options.device = 1; }, "NEREUS_MEMORY_CUDA"},
    {[](CWorker& w) { w.options.settings_count = 1; },
     "options.settings is NULL"},
    {[](CWorker& w) { w.options.coordinator_address = nullptr; },
     "coordinator_address"},
    {[](CWorker& w) { w.options.round_timeout_ms = -5; }, "round_timeout"},
    {[](CWorker& w) { w.layers.clear(); }, "layer"},
    {[](CWorker& w) { w.layers[1].size = 88; }, "layers[1].size is 88"},
    {[](CWorker& w) { w.layers[1].name = nullptr; }, "layers[1].name is NULL"},
    {[](CWorker& w) { w.layers[1].kind = 9; }, "layers[1].kind is 9"},
    {[](CWorker& w) { w.layers[1].parameters_count = -1; }, "scale"},
    {[](CWorker& w) { w.layers[1].parameters = nullptr; },
     "layers[1].parameters is NULL"},
    {[](CWorker& w) { w.layers[1].state_arrays = 1; },
     "layers[1].state is NULL"},
    {[](CWorker& w) { w.layers[1].state_arrays = 99; },
     "layers[1].state_arrays is 99"},
};

TEST(CApiLibraryTest, EachWrongFieldOfConnectIsNamed) {
  const LocalCluster cluster(Workers(1));
  for (const auto& [change, says] : kWrongFields) {
    CWorker worker(cluster);
    worker.client = reinterpret_cast<nereus_client*>(uintptr_t{7});
    change(worker);
    EXPECT_EQ(worker.Connect(), NEREUS_INVALID_ARGUMENT);
    EXPECT_EQ(worker.client, nullptr);
    EXPECT_THAT(LastError(), HasSubstr(says));
  }

  CWorker worker(cluster);
  EXPECT_EQ(nereus_client_connect(&worker.options, worker.layers.data(), 2,
                                  nullptr, nullptr),
            NEREUS_INVALID_ARGUMENT);
  worker.options.memory = NEREUS_MEMORY_CUDA;
  EXPECT_EQ(worker.Connect(), NEREUS_UNIMPLEMENTED);
  EXPECT_THAT(LastError(), HasSubstr("libnereus_cuda.so"));
}

TEST(CApiLibraryTest, AWorkerThatWaitsForTheOthersCanGiveUp) {
  const LocalCluster cluster(Workers(2));
  CWorker worker(cluster);
  ASSERT_EQ(worker.Connect(), NEREUS_OK) << LastError();
  EXPECT_EQ(nereus_client_wait_connected(worker.client, 10, nullptr),
            NEREUS_DEADLINE_EXCEEDED);
  EXPECT_EQ(worker.BeginStep(), NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("nereus_client_wait_connected"));
  EXPECT_EQ(worker.Error(), LastError());
  EXPECT_EQ(nereus_client_wait_connected(worker.client, 0, nullptr),
            NEREUS_DEADLINE_EXCEEDED);
}

TEST_F(CApiTest, AStepUpdatesTheParameters) {
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK) << LastError();
  EXPECT_EQ(worker_.step.step, 0);
  EXPECT_EQ(worker_.step.workers, 1);
  EXPECT_EQ(worker_.step.loss_scale, 1.0f);
  ASSERT_EQ(worker_.PushAll(), NEREUS_OK) << LastError();
  EXPECT_EQ(nereus_client_wait(worker_.client, 0, 0, -1, nullptr), NEREUS_OK);
  EXPECT_EQ(nereus_client_wait_forward(worker_.client, 1, -1, nullptr),
            NEREUS_OK);
  ASSERT_EQ(worker_.WaitAll(), NEREUS_OK) << LastError();
  EXPECT_THAT(worker_.scale, ElementsAre(-1.0f, -2.0f));
  EXPECT_THAT(worker_.fc, ElementsAre(-1.0f, 0.0f, 1.0f, -2.0f, 0.0f, 2.0f));
  int32_t skipped = -1;
  EXPECT_EQ(nereus_client_skipped(worker_.client, 0, &skipped), NEREUS_OK);
  EXPECT_EQ(skipped, 0);
  ASSERT_EQ(nereus_client_leave(worker_.client, kPatienceMs, nullptr),
            NEREUS_OK)
      << LastError();
  EXPECT_EQ(worker_.BeginStep(), NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("has left"));
}

TEST_F(CApiTest, AStepWithoutRoomIsRefusedAndDoesNotBegin) {
  worker_.step.size = 47;
  EXPECT_EQ(worker_.BeginStep(), NEREUS_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("step.size is 47"));
  // The step was not begun by the call that was refused.
  worker_.step.size = sizeof(nereus_step);
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK) << LastError();
  EXPECT_EQ(worker_.step.step, 0);
}

TEST_F(CApiTest, MistakesInAStepAreErrors) {
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK) << LastError();
  nereus_client* const client = worker_.client;
  EXPECT_EQ(nereus_client_push(client, 1, 0, nullptr, 2, nullptr),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(
      nereus_client_push(client, 1, 0, worker_.gradient.data(), -2, nullptr),
      NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(
      nereus_client_push(client, 1, 0, worker_.gradient.data(), 1, nullptr),
      NEREUS_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("scale"));
  EXPECT_EQ(
      nereus_client_push(client, 2, 0, worker_.gradient.data(), 2, nullptr),
      NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(
      nereus_client_push_factors(client, 0, 0, nullptr, nullptr, 0, nullptr),
      NEREUS_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("factors is NULL"));
  nereus_factors factors = {};
  factors.size = sizeof(factors);
  factors.reserved = 1;
  EXPECT_EQ(
      nereus_client_push_factors(client, 0, 0, &factors, nullptr, 0, nullptr),
      NEREUS_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("factors.reserved is 1"));
  EXPECT_EQ(nereus_client_wait(client, 1, 0, 0, nullptr),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(worker_.BeginStep(), NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), AllOf(HasSubstr("fc"), HasSubstr("scale")));
  EXPECT_EQ(nereus_client_checkpoint(client), NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("--checkpoint-dir"));
  const float* mean = nullptr;
  int64_t length = 0;
  EXPECT_EQ(nereus_client_mean(client, 1, &mean, &length),
            NEREUS_FAILED_PRECONDITION);
  EXPECT_EQ(nereus_client_mean(client, 2, &mean, &length),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_abort(client, nullptr), NEREUS_INVALID_ARGUMENT);
  int64_t rows[2] = {0, 0};
  EXPECT_EQ(nereus_client_factor_rows(client, 9, rows),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_factor_rows(client, 0, nullptr),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_set_factor_rows(client, rows, 1),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_set_factor_rows(client, rows, -1),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_set_factor_rows(client, nullptr, 2),
            NEREUS_INVALID_ARGUMENT);
  rows[0] = -2;
  EXPECT_EQ(nereus_client_set_factor_rows(client, rows, 2),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_report_json(client, nullptr, 8, &length),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_report_json(client, nullptr, -1, &length),
            NEREUS_INVALID_ARGUMENT);
  EXPECT_EQ(nereus_client_report_json(client, nullptr, 0, nullptr),
            NEREUS_INVALID_ARGUMENT);
}

TEST_F(CApiTest, ALayerWhoseFactorsThePlanDoesNotSendMayBePushedWhole) {
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK) << LastError();
  int64_t rows = -1;
  ASSERT_EQ(nereus_client_factor_rows(worker_.client, 0, &rows), NEREUS_OK);
  // A single worker has no worker to send factors to.
  EXPECT_EQ(rows, 0);
  std::vector<float> gradient(6, 1.0f);
  ASSERT_EQ(nereus_client_push(worker_.client, 0, 0, gradient.data(), 6,
                               /*stream=*/nullptr),
            NEREUS_OK)
      << LastError();
  ASSERT_EQ(worker_.PushScale(), NEREUS_OK);
  EXPECT_EQ(worker_.WaitAll(), NEREUS_OK) << LastError();
}

TEST(CApiFactorsTest, RowsOfTheFirstStepMakeThePlanOfTheSecond) {
  ServerOptions options = Workers(2);
  options.spec.rules.forced = Scheme::kFactor;
  const LocalCluster cluster(options);
  CWorker first(cluster);
  CWorker second(cluster);
  for (CWorker* const worker : {&first, &second}) {
    worker->layers[0].rows = 0;
    ASSERT_EQ(worker->Connect(), NEREUS_OK) << LastError();
  }
  std::vector<float> whole(6, 1.0f);
  for (CWorker* const worker : {&first, &second}) {
    ASSERT_EQ(
        nereus_client_wait_connected(worker->client, kPatienceMs, nullptr),
        NEREUS_OK)
        << LastError();
    ASSERT_EQ(worker->BeginStep(), NEREUS_OK) << LastError();
    int64_t rows = -1;
    ASSERT_EQ(nereus_client_factor_rows(worker->client, 0, &rows), NEREUS_OK);
    EXPECT_EQ(rows, 0);
    EXPECT_EQ(worker->PushFactors(), NEREUS_INVALID_ARGUMENT);
    EXPECT_THAT(LastError(), HasSubstr("before the job knows their rows"));
    ASSERT_EQ(nereus_client_push(worker->client, 0, 0, whole.data(), 6,
                                 /*stream=*/nullptr),
              NEREUS_OK)
        << LastError();
    // Before the last push of the step.
    const int64_t seen[] = {1, 0};
    ASSERT_EQ(nereus_client_set_factor_rows(worker->client, seen, 2), NEREUS_OK)
        << LastError();
    ASSERT_EQ(worker->PushScale(), NEREUS_OK) << LastError();
  }
  for (CWorker* const worker : {&first, &second}) {
    ASSERT_EQ(worker->WaitAll(), NEREUS_OK) << LastError();
  }
  for (CWorker* const worker : {&first, &second}) {
    ASSERT_EQ(worker->BeginStep(), NEREUS_OK) << LastError();
    EXPECT_EQ(worker->step.step, 1);
    int64_t rows = -1;
    ASSERT_EQ(nereus_client_factor_rows(worker->client, 0, &rows), NEREUS_OK);
    EXPECT_EQ(rows, 1);
    ASSERT_EQ(worker->PushFactors(), NEREUS_OK) << LastError();
    ASSERT_EQ(worker->PushScale(), NEREUS_OK) << LastError();
  }
  for (CWorker* const worker : {&first, &second}) {
    ASSERT_EQ(worker->WaitAll(), NEREUS_OK) << LastError();
  }
  EXPECT_EQ(first.fc, second.fc);
}

TEST(CApiFactorsTest, OneWorkerPushesALayerWholeAndAnotherItsFactors) {
  ServerOptions options = Workers(2);
  options.spec.rules.forced = Scheme::kFactor;
  const LocalCluster cluster(options);
  CWorker first(cluster);
  CWorker second(cluster);
  ASSERT_EQ(second.Connect(), NEREUS_OK) << LastError();
  first.Join();
  ASSERT_EQ(first.BeginStep(), NEREUS_OK) << LastError();
  int64_t rows = -1;
  ASSERT_EQ(nereus_client_factor_rows(first.client, 0, &rows), NEREUS_OK);
  EXPECT_EQ(rows, 1);
  std::vector<float> gradient(6, 1.0f);
  ASSERT_EQ(nereus_client_push(first.client, 0, 0, gradient.data(), 6,
                               /*stream=*/nullptr),
            NEREUS_OK)
      << LastError();
  ASSERT_EQ(nereus_client_wait_connected(second.client, kPatienceMs, nullptr),
            NEREUS_OK)
      << LastError();
  ASSERT_EQ(second.BeginStep(), NEREUS_OK) << LastError();
  ASSERT_EQ(second.PushFactors(), NEREUS_OK) << LastError();
  for (CWorker* const worker : {&first, &second}) {
    ASSERT_EQ(worker->PushScale(), NEREUS_OK) << LastError();
  }
  for (CWorker* const worker : {&first, &second}) {
    EXPECT_EQ(worker->WaitAll(), NEREUS_OK) << LastError();
  }
  EXPECT_EQ(first.fc, second.fc);
}

TEST_F(CApiTest, TraitsAndReportDescribeTheJob) {
  nereus_traits traits = {};
  EXPECT_EQ(nereus_client_traits(worker_.client, &traits),
            NEREUS_INVALID_ARGUMENT);
  traits.size = sizeof(traits);
  ASSERT_EQ(nereus_client_traits(worker_.client, &traits), NEREUS_OK);
  EXPECT_EQ(traits.rank, 0);
  EXPECT_EQ(traits.updates_parameters, 0);
  EXPECT_EQ(traits.learning_rate, 1.0f);
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK);
  ASSERT_EQ(worker_.PushAll(), NEREUS_OK);
  ASSERT_EQ(worker_.WaitAll(), NEREUS_OK);
  const auto report = nlohmann::json::parse(
      Text([&](char* text, int64_t capacity, int64_t* length) {
        return nereus_client_report_json(worker_.client, text, capacity,
                                         length);
      }));
  ASSERT_EQ(report.at("layers").size(), 2u);
  EXPECT_EQ(report["layers"][1].at("name"), "scale");
  EXPECT_EQ(report["layers"][1].at("rounds"), 1);
  EXPECT_GT(report["layers"][1].at("bytes_sent"), 0);
  EXPECT_EQ(report.at("peers").at(0).at("kind"), "server");
}

TEST_F(CApiTest, TheErrorOfAClientIsFoundOnAnyThread) {
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK);
  EXPECT_THAT(worker_.Error(), IsEmpty());
  std::thread other([&] {
    EXPECT_EQ(nereus_client_push(worker_.client, 7, 0, nullptr, 0, nullptr),
              NEREUS_INVALID_ARGUMENT);
    EXPECT_THAT(LastError(), HasSubstr("there is no layer 7"));
  });
  other.join();
  EXPECT_THAT(worker_.Error(), HasSubstr("there is no layer 7"));
  char cut[6];
  int64_t length = 0;
  ASSERT_EQ(nereus_client_error(worker_.client, cut, sizeof(cut), &length),
            NEREUS_OK);
  EXPECT_STREQ(cut, "there");
  EXPECT_GT(length, 6);
}

TEST_F(CApiTest, AClosedClientIsRefusedAndClosedTwiceWithoutHarm) {
  nereus_client* const client = worker_.client;
  nereus_client_close(client);
  EXPECT_EQ(worker_.BeginStep(), NEREUS_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("was closed"));
  nereus_client_close(client);
}

TEST_F(CApiTest, AbortReturnsTheReasonAndEndsTheJob) {
  EXPECT_EQ(nereus_client_abort(worker_.client, "the data is wrong"),
            NEREUS_FAILED_PRECONDITION);
  EXPECT_EQ(LastError(), "the data is wrong");
  EXPECT_NE(worker_.BeginStep(), NEREUS_OK);
  EXPECT_THAT(LastError(), HasSubstr("the data is wrong"));
}

// ---- The lobby.

// Process of a lobby of two.
class CLobby {
 public:
  CLobby(const LocalCluster& cluster, int32_t rank)
      : coordinator_(cluster.coordinator_address()) {
    options.size = sizeof(options);
    options.coordinator_address = coordinator_.c_str();
    options.has_rank = 1;
    options.rank = rank;
  }
  ~CLobby() { nereus_lobby_close(lobby); }

  nereus_code Enter(int32_t count = 2) {
    return nereus_lobby_enter(&options, count, &lobby);
  }
  nereus_code Gather(const std::string& value,
                     int64_t timeout_ms = kPatienceMs) {
    return nereus_lobby_gather(lobby, value.data(),
                               static_cast<int64_t>(value.size()), timeout_ms,
                               &count);
  }
  // Returns the values of the last gathering.
  std::vector<std::string> Gathered() const {
    std::vector<std::string> values;
    for (int32_t i = 0; i < count; ++i) {
      int64_t length = -1;
      EXPECT_EQ(nereus_lobby_gathered(lobby, i, nullptr, 0, &length),
                NEREUS_OK);
      std::string& value = values.emplace_back(length, '#');
      EXPECT_EQ(nereus_lobby_gathered(lobby, i, value.data(), length, &length),
                NEREUS_OK);
    }
    return values;
  }

  nereus_client_options options = {};
  nereus_lobby* lobby = nullptr;
  int32_t count = -1;

 private:
  const std::string coordinator_;
};

TEST(CApiLobbyTest, ProcessesGatherBeforeTheyJoin) {
  const LocalCluster cluster(Workers(2));
  CLobby first(cluster, 0);
  CLobby second(cluster, 1);
  ASSERT_EQ(first.Enter(), NEREUS_OK) << LastError();
  ASSERT_EQ(second.Enter(), NEREUS_OK) << LastError();
  EXPECT_EQ(first.Gather("a", 100), NEREUS_DEADLINE_EXCEEDED);
  EXPECT_THAT(LastError(), HasSubstr("has not ended within 100ms"));
  ASSERT_EQ(second.Gather(std::string("b\0", 2)), NEREUS_OK) << LastError();
  ASSERT_EQ(first.Gather("not this one"), NEREUS_OK) << LastError();
  EXPECT_THAT(first.Gathered(), ElementsAre("a", std::string("b\0", 2)));
  EXPECT_EQ(second.Gathered(), first.Gathered());
  EXPECT_EQ(first.Gather("", 0), NEREUS_DEADLINE_EXCEEDED);
  ASSERT_EQ(second.Gather(""), NEREUS_OK) << LastError();
  ASSERT_EQ(first.Gather(""), NEREUS_OK) << LastError();
  EXPECT_THAT(first.Gathered(), ElementsAre("", ""));
  // The lobby stays open, and the job begins.
  CWorker one(cluster);
  CWorker other(cluster);
  one.options.has_rank = other.options.has_rank = 1;
  one.options.rank = 1;
  ASSERT_EQ(one.Connect(), NEREUS_OK) << LastError();
  ASSERT_EQ(other.Connect(), NEREUS_OK) << LastError();
  nereus_traits traits = {};
  traits.size = sizeof(traits);
  for (CWorker* const worker : {&one, &other}) {
    ASSERT_EQ(
        nereus_client_wait_connected(worker->client, kPatienceMs, nullptr),
        NEREUS_OK)
        << LastError();
    ASSERT_EQ(nereus_client_traits(worker->client, &traits), NEREUS_OK);
    EXPECT_EQ(traits.rank, worker->options.rank);
  }
  EXPECT_EQ(first.Gather("", kPatienceMs), NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("gather equally often"));
}

TEST(CApiLobbyTest, WrongCallsAreNamed) {
  const LocalCluster cluster(Workers(2));
  CLobby lobby(cluster, 0);
  const auto refused = [&](nereus_code code, const char* text) {
    EXPECT_EQ(code, NEREUS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(LastError(), HasSubstr(text));
  };
  refused(nereus_lobby_enter(&lobby.options, 2, nullptr), "lobby is NULL");
  refused(nereus_lobby_enter(nullptr, 2, &lobby.lobby), "options is NULL");
  refused(lobby.Enter(0), "rank is 0 of 0 processes");
  lobby.options.rank = 2;
  refused(lobby.Enter(), "rank is 2 of 2 processes");
  lobby.options.has_rank = 0;
  refused(lobby.Enter(), "options.rank is 2, and options.has_rank is 0");
  lobby.options.rank = 0;
  refused(lobby.Enter(), "rank is not set");
  EXPECT_EQ(lobby.lobby, nullptr);
  refused(lobby.Gather("a"), "lobby is NULL");
  lobby.options.has_rank = 1;
  ASSERT_EQ(lobby.Enter(), NEREUS_OK) << LastError();
  refused(lobby.Gather(std::string(65537, 'x')), "the value has 65537 bytes");
  refused(nereus_lobby_gather(lobby.lobby, nullptr, 1, 0, &lobby.count),
          "value is NULL");
  refused(nereus_lobby_gather(lobby.lobby, "a", 1, 0, nullptr),
          "count is NULL");
  int64_t length = 0;
  refused(nereus_lobby_gathered(lobby.lobby, 0, nullptr, 0, &length),
          "there is no value 0");
  nereus_lobby_close(lobby.lobby);
  refused(lobby.Gather("a"), "lobby is no open lobby");
  nereus_lobby_close(lobby.lobby);
}

TEST(CApiLobbyTest, CoordinatorThatIsNotThereIsUnavailable) {
  const LocalCluster cluster(Workers(2));
  CLobby lobby(cluster, 0);
  lobby.options.coordinator_address = "127.0.0.1:1";
  lobby.options.connect_timeout_ms = 300;
  ASSERT_EQ(lobby.Enter(), NEREUS_OK) << LastError();
  EXPECT_EQ(lobby.Gather("a"), NEREUS_UNAVAILABLE);
  EXPECT_THAT(LastError(), HasSubstr("127.0.0.1:1"));
}

// The caller's own optimizer, with state.
TEST(CApiOptimizerTest, TheMeanIsInThePushedGradient) {
  ServerOptions options = Workers(1);
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  const LocalCluster cluster(options);
  CWorker worker(cluster);
  std::vector<float> states(16, 0.0f);
  worker.options.optimizer = NEREUS_OPTIMIZER_WORKER;
  worker.layers[0].state = states.data();
  worker.layers[1].state = states.data() + 12;
  for (nereus_layer& layer : worker.layers) layer.state_arrays = 2;
  const nereus_setting setting = {"batch", "32"};
  worker.options.settings = &setting;
  worker.options.settings_count = 1;
  worker.Join();
  ASSERT_EQ(worker.BeginStep(), NEREUS_OK) << LastError();
  const float* mean = nullptr;
  int64_t length = 0;
  EXPECT_EQ(nereus_client_mean(worker.client, 1, &mean, &length),
            NEREUS_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("layer scale has no mean gradient"));
  ASSERT_EQ(worker.PushAll(), NEREUS_OK) << LastError();
  ASSERT_EQ(worker.WaitAll(), NEREUS_OK) << LastError();
  ASSERT_EQ(nereus_client_mean(worker.client, 1, &mean, &length), NEREUS_OK);
  EXPECT_EQ(mean, worker.gradient.data());
  EXPECT_EQ(length, 2);
  EXPECT_THAT(worker.scale, ElementsAre(0.0f, 0.0f));
}

// A wait in parts lets a close of another thread come through.
TEST(CApiTimeoutTest, AWaitTimesOutAndNamesTheWorkerThatIsMissing) {
  const LocalCluster cluster(Workers(2));
  CWorker first(cluster);
  CWorker second(cluster);
  ASSERT_EQ(second.Connect(), NEREUS_OK) << LastError();
  first.Join();
  ASSERT_EQ(nereus_client_wait_connected(second.client, kPatienceMs, nullptr),
            NEREUS_OK);
  ASSERT_EQ(first.BeginStep(), NEREUS_OK) << LastError();
  ASSERT_EQ(first.PushAll(), NEREUS_OK) << LastError();
  // A driver that is busy for long does not say in time what is missing.
  do {
    ASSERT_EQ(first.WaitAll(10), NEREUS_DEADLINE_EXCEEDED) << LastError();
  } while (!absl::StrContains(LastError(), "missing: worker"));
  std::promise<void> has_waited;
  std::thread waiter([&] {
    EXPECT_EQ(first.WaitAll(10), NEREUS_DEADLINE_EXCEEDED) << LastError();
    has_waited.set_value();
    while (first.WaitAll(10) == NEREUS_DEADLINE_EXCEEDED) {
    }
  });
  has_waited.get_future().wait();
  nereus_client_close(first.client);
  waiter.join();
  EXPECT_EQ(first.WaitAll(10), NEREUS_INVALID_ARGUMENT);
}

// Exit code of a child that finds everything as nereus.h says.
constexpr int kAsDocumented = 42;

TEST_F(CApiTest, AForkedChildIsToldSoAndEndsWithoutHarm) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool is_refused =
        worker_.BeginStep() == NEREUS_FAILED_PRECONDITION &&
        LastError().find("was forked") != std::string::npos &&
        worker_.Connect() == NEREUS_FAILED_PRECONDITION;
    nereus_client_close(worker_.client);
    is_forked = true;
    std::exit(is_refused ? kAsDocumented : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), kAsDocumented);
  // The parent goes on.
  ASSERT_EQ(worker_.BeginStep(), NEREUS_OK) << LastError();
}

// Ends the process with kAsDocumented if a child is told that it was forked.
[[noreturn]] void ForkAfterAConnectThatFails() {
  CWorker worker("127.0.0.1:1");
  worker.options.host = "192.0.2.1";  // No address of this computer.
  if (worker.Connect() != NEREUS_UNAVAILABLE) std::_Exit(1);
  const pid_t child = fork();
  if (child == 0) {
    std::_Exit(nereus_set_log_level(NEREUS_LOG_INFO) ==
                       NEREUS_FAILED_PRECONDITION
                   ? kAsDocumented
                   : 2);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) std::_Exit(3);
  std::_Exit(WEXITSTATUS(status));
}

// A client has threads before nereus_client_connect returns it: forks count
// from the begin of the call. The call must be the first of its process.
TEST(CApiForkTest, ForksCountFromTheFirstConnectEvenIfItFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ForkAfterAConnectThatFails(),
              testing::ExitedWithCode(kAsDocumented), "");
}

}  // namespace
}  // namespace nereus
