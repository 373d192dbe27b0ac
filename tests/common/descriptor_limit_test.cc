#include "common/base/descriptor_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace nereus {
namespace {

// Restores the process's descriptor limit after each test.
class DescriptorLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    if (before_.rlim_max <= kLow) GTEST_SKIP() << "the hard limit is too low";
  }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  void SetLimit(rlim_t descriptors) {
    const rlimit limit = {descriptors, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  // Returns the highest limit that the system grants this process.
  int Most() const {
    return static_cast<int>(
        std::min<rlim_t>(before_.rlim_max, std::numeric_limits<int>::max()));
  }

  static constexpr rlim_t kLow = 77;
  rlimit before_ = {};
};

TEST_F(DescriptorLimitTest, LimitIsTheKernelsLimit) {
  for (const rlim_t limit : {kLow, kLow - 1}) {
    SetLimit(limit);
    EXPECT_EQ(DescriptorLimit(), static_cast<int>(limit));
  }
}

TEST_F(DescriptorLimitTest, LimitIsRaisedToTheSystemsMaximum) {
  SetLimit(kLow);
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), Most());
  // A second call changes nothing.
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), Most());
}

TEST_F(DescriptorLimitTest, RaisedLimitAllowsMoreFiles) {
  SetLimit(kLow);
  std::vector<int> files;
  for (;;) {
    const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file < 0) break;
    files.push_back(file);
  }
  RaiseDescriptorLimit();
  const int more = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(more, static_cast<int>(kLow));
  if (more >= 0) close(more);
  for (const int file : files) close(file);
}

}  // namespace
}  // namespace nereus
