#include "worker/public/client_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <string>

#include "absl/time/time.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kVariables[] = {
    "NEREUS_COORDINATOR",   "NEREUS_JOB_NAME",     "NEREUS_NAME",
    "NEREUS_HOST",          "NEREUS_LISTEN",       "NEREUS_NODE",
    "NEREUS_DATA_PORT",     "NEREUS_CONTROL_PORT", "NEREUS_CONNECT_TIMEOUT",
    "NEREUS_SHARED_MEMORY", "NEREUS_RANK",         "NEREUS_LOCAL_RANK",
    "NEREUS_SHARE",         "NEREUS_SHARE_WEIGHT", "NEREUS_SHARE_OPTIONAL"};

class ClientOptionsTest : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* name : kVariables) unsetenv(name);
  }
};

TEST_F(ClientOptionsTest, EachVariableSetsItsField) {
  setenv("NEREUS_COORDINATOR", "10.0.0.1:7000", 1);
  setenv("NEREUS_JOB_NAME", "digits", 1);
  setenv("NEREUS_NAME", "w3", 1);
  setenv("NEREUS_HOST", "10.0.0.3", 1);
  setenv("NEREUS_NODE", "rack-1", 1);
  setenv("NEREUS_CONTROL_PORT", "7001", 1);
  setenv("NEREUS_DATA_PORT", "7002", 1);
  setenv("NEREUS_SHARED_MEMORY", "off", 1);
  setenv("NEREUS_LISTEN", "0.0.0.0", 1);
  setenv("NEREUS_CONNECT_TIMEOUT", "2.5", 1);
  setenv("NEREUS_SHARE", "/dev/shm/gpu0", 1);
  setenv("NEREUS_SHARE_WEIGHT", "2.5", 1);
  setenv("NEREUS_SHARE_OPTIONAL", "on", 1);
  const auto options = ClientOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->coordinator_address, "10.0.0.1:7000");
  EXPECT_EQ(options->job, "digits");
  EXPECT_EQ(options->name, "w3");
  EXPECT_EQ(options->address.host, "10.0.0.3");
  EXPECT_EQ(options->address.listen, "0.0.0.0");
  EXPECT_EQ(options->connect_timeout, absl::Seconds(2.5));
  EXPECT_EQ(options->node, "rack-1");
  EXPECT_EQ(options->address.control_port, 7001);
  EXPECT_EQ(options->address.data_port, 7002);
  EXPECT_FALSE(options->shared_memory);
  EXPECT_EQ(options->share.folder, "/dev/shm/gpu0");
  EXPECT_EQ(options->share.weight, 2.5);
  EXPECT_TRUE(options->share.is_optional);
  EXPECT_TRUE(options->Validate().ok()) << options->Validate();
}

TEST_F(ClientOptionsTest, VariableThatIsEmptyOrNotSetLeavesTheDefault) {
  for (const char* name : {"NEREUS_JOB_NAME", "NEREUS_HOST", "NEREUS_DATA_PORT",
                           "NEREUS_SHARED_MEMORY"}) {
    setenv(name, "", 1);
  }
  const auto options = ClientOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  const ClientOptions defaults;
  EXPECT_EQ(options->job, defaults.job);
  EXPECT_EQ(options->address.host, defaults.address.host);
  EXPECT_EQ(options->address.data_port, defaults.address.data_port);
  EXPECT_TRUE(options->shared_memory);
}

TEST_F(ClientOptionsTest, RankIsThatOfTheLauncher) {
  EXPECT_FALSE(ClientOptions::FromEnvironment()->rank.has_value());
  setenv("NEREUS_LOCAL_RANK", "1", 1);
  EXPECT_EQ(ClientOptions::FromEnvironment()->rank, 1);
  setenv("NEREUS_RANK", "5", 1);
  EXPECT_EQ(ClientOptions::FromEnvironment()->rank, 5);
  setenv("NEREUS_RANK", "first", 1);
  EXPECT_THAT(ClientOptions::FromEnvironment().status().message(),
              HasSubstr("NEREUS_RANK is \"first\""));
  ClientOptions options;
  options.coordinator_address = "h:1";
  EXPECT_TRUE(options.Validate().ok());
  for (const int32_t wrong : {-1, 65536}) {
    options.rank = wrong;
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ClientOptionsTest, OptionsWithoutACoordinatorTellWhereToGetIt) {
  const auto options = ClientOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->Validate().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(options->Validate().message()),
      AllOf(HasSubstr("coordinator_address is empty"),
            HasSubstr("NEREUS_COORDINATOR"), HasSubstr("nereusctl run")));
}

TEST_F(ClientOptionsTest, TimesMustBePositive) {
  for (absl::Duration ClientOptions::*const time :
       {&ClientOptions::connect_timeout, &ClientOptions::round_timeout,
        &ClientOptions::stall_threshold}) {
    ClientOptions options;
    options.coordinator_address = "127.0.0.1:7000";
    EXPECT_TRUE(options.Validate().ok()) << options.Validate();
    options.*time = absl::ZeroDuration();
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ClientOptionsTest, WrongOptionsOfASharedDeviceAreRefused) {
  const auto refused = [](const ShareOptions& share) {
    ClientOptions options;
    options.coordinator_address = "127.0.0.1:7000";
    options.share = share;
    return std::string(options.Validate().message());
  };
  EXPECT_EQ(refused({.folder = "/dev/shm/x", .weight = 0.01}), "");
  for (const double weight : {0.0, -1.0, 101.0, std::nan("")}) {
    EXPECT_THAT(refused({.weight = weight}), HasSubstr("share.weight is"));
  }
  EXPECT_THAT(refused({.limit = absl::ZeroDuration()}),
              HasSubstr("share.limit is 0"));
  EXPECT_THAT(refused({.resident_bytes = -1}),
              HasSubstr("share.resident_bytes is -1"));
  EXPECT_THAT(refused({.turn_bytes = -2}), HasSubstr("share.turn_bytes is -2"));
}

// Kubernetes sets this variable for a Service that is called nereus-data.
TEST_F(ClientOptionsTest, PortOfAServiceIsNoPortOfThisProcess) {
  setenv("NEREUS_DATA_PORT", "tcp://10.0.0.1:7001", 1);
  const auto options = ClientOptions::FromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->address.data_port, 0);
}

TEST_F(ClientOptionsTest, WrongValueIsRefusedWithItsVariable) {
  const struct {
    const char* name;
    const char* value;
  } kCases[] = {{"NEREUS_CONTROL_PORT", "x"},
                {"NEREUS_CONNECT_TIMEOUT", "-1"},
                {"NEREUS_SHARED_MEMORY", "on"},
                {"NEREUS_SHARE_WEIGHT", "much"},
                {"NEREUS_SHARE_OPTIONAL", "yes"}};
  for (const auto& c : kCases) {
    setenv(c.name, c.value, 1);
    const absl::Status status = ClientOptions::FromEnvironment().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(c.name), HasSubstr(c.value)));
    unsetenv(c.name);
  }
}

}  // namespace
}  // namespace nereus
