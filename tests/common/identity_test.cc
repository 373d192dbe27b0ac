#include "common/base/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::EndsWith;
using testing::MatchesRegex;
using testing::SizeIs;
using testing::StartsWith;

TEST(IdentityTest, ProcessNameHoldsHostAndNumber) {
  EXPECT_THAT(ProcessName(), EndsWith(absl::StrCat(":", getpid())));
  EXPECT_EQ(ProcessName().find(':'), ProcessName().rfind(':'));
  EXPECT_NE(ProcessName().front(), ':');
  EXPECT_EQ(ProcessName(), ProcessName());
}

// This is the first name that the child process draws.
TEST(IdentityDeathTest, FirstNameIsTheProcessAndLaterNamesAreNumbered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const bool as_said = UniqueName() == ProcessName() &&
                             UniqueName() == ProcessName() + ".2" &&
                             UniqueName() == ProcessName() + ".3";
        std::exit(as_said ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(IdentityTest, NamesOfAProcessDifferOnAllThreads) {
  constexpr int kThreads = 4;
  constexpr int kNames = 500;
  std::vector<std::vector<std::string>> names(kThreads);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& own : names) {
    threads.emplace_back([&own] {
      for (int i = 0; i < kNames; ++i) own.push_back(UniqueName());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> all;
  for (const std::vector<std::string>& own : names) {
    for (const std::string& name : own) {
      EXPECT_THAT(name, StartsWith(ProcessName()));
      all.insert(name);
    }
  }
  EXPECT_THAT(all, SizeIs(kThreads * kNames));
}

TEST(IdentityTest, BootIdIsAUuidAndDoesNotChange) {
  EXPECT_THAT(BootId(), MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(BootId(), BootId());
}

TEST(IdentityTest, NetworkNamespaceHasANumber) {
  EXPECT_NE(NetworkNamespace(), 0u);
  EXPECT_EQ(NetworkNamespace(), NetworkNamespace());
}

TEST(IdentityTest, DrawnNumbersDiffer) {
  std::set<uint64_t> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(DrawUniqueId());
  EXPECT_THAT(drawn, SizeIs(1000));
}

}  // namespace
}  // namespace nereus
