#include "server/coordinator/host_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Returns the request of process `name` with the claim {node, machine}. Each
// name has an incarnation of its own.
JoinRequest Joins(const std::string& name, const std::string& node,
                  const std::string& machine) {
  JoinRequest request;
  request.name = name;
  request.incarnation = std::hash<std::string>()(name);
  request.host = {node, machine};
  return request;
}

TEST(HostTableTest, EqualClaimsHaveOneNumberAndOthersTheNext) {
  HostTable table;
  EXPECT_EQ(table.NumberOf(Joins("a", "", "m1/7")).host, 0);
  EXPECT_EQ(table.NumberOf(Joins("b", "", "m2/7")).host, 1);
  EXPECT_EQ(table.NumberOf(Joins("c", "", "m1/7")).host, 0);
  EXPECT_EQ(table.NumberOf(Joins("d", "", "m1/8")).host, 2);
  EXPECT_EQ(table.NumberOf(Joins("b", "", "m2/7")).host, 1);
}

TEST(HostTableTest, DifferentNodesSplitAMachine) {
  HostTable table;
  EXPECT_EQ(table.NumberOf(Joins("a", "left", "m1")).host, 0);
  EXPECT_EQ(table.NumberOf(Joins("b", "right", "m1")).host, 1);
  EXPECT_EQ(table.NumberOf(Joins("c", "left", "m1")).host, 0);
}

TEST(HostTableTest, ProcessOfAnUnknownMachineIsAHostOfItsOwn) {
  HostTable table;
  for (const char* node : {"", "rack-3"}) {
    EXPECT_EQ(table.NumberOf(Joins("a", node, "")).host, -1);
    EXPECT_EQ(table.NumberOf(Joins("b", node, "")).host, -1);
  }
  EXPECT_EQ(table.state(), HostTable::State());
}

TEST(HostTableTest, MachinesThatSayTheSameNodeAreAnnouncedOnce) {
  HostTable table;
  EXPECT_EQ(table.NumberOf(Joins("a", "n", "m1")).news, "");
  EXPECT_EQ(table.NumberOf(Joins("b", "n", "m1")).news, "");
  EXPECT_EQ(table.NumberOf(Joins("c", "o", "m2")).news, "");
  const HostTable::Numbered twin = table.NumberOf(Joins("d", "n", "m2"));
  EXPECT_EQ(twin.host, 2);
  EXPECT_EQ(twin.news,
            "a and d both say --node=n and run on different machines: they "
            "count as two hosts");
  EXPECT_EQ(table.NumberOf(Joins("e", "n", "m3")).news, "");
  EXPECT_EQ(table.NumberOf(Joins("f", "n", "m2")).news, "");
  EXPECT_THAT(table.NumberOf(Joins("g", "o", "m0")).news,
              HasSubstr("c and g both say --node=o"));
}

// Namespaces of two machines may have equal numbers.
TEST(HostTableTest, MachinesWithoutANodeAreNoNews) {
  HostTable table;
  EXPECT_EQ(table.NumberOf(Joins("a", "", "m1/7")).news, "");
  EXPECT_EQ(table.NumberOf(Joins("b", "", "m2/7")).news, "");
}

TEST(HostTableTest, SplitProcessIsAHostOfItsOwn) {
  HostTable table;
  const JoinRequest a = Joins("a", "", "m1/7");
  const JoinRequest b = Joins("b", "", "m1/7");
  EXPECT_EQ(table.NumberOf(a).host, 0);
  EXPECT_EQ(table.NumberOf(b).host, 0);
  EXPECT_EQ(table.Split(a, b, "refused"),
            "worker b and worker a cannot connect, although both run on one "
            "machine and in one network namespace: refused. From now on worker "
            "b counts as a host of its own, which costs speed. Let workers of "
            "one host connect to each other, or give them different --node");
  EXPECT_EQ(table.Split(a, b, "refused"), "");
  EXPECT_EQ(table.Split(b, Joins("c", "", "m1/7"), "refused"), "");
  EXPECT_FALSE(table.IsSplit(a.incarnation));
  EXPECT_EQ(table.NumberOf(a).host, 0);
  EXPECT_EQ(table.NumberOf(b).host, -1);
  // The next process of that name is another one.
  EXPECT_EQ(table.NumberOf(Joins("b again", "", "m1/7")).host, 0);
}

TEST(HostTableTest, RestoredTableKeepsNumbersAndSplits) {
  HostTable before;
  before.NumberOf(Joins("a", "n", "m2"));
  before.NumberOf(Joins("b", "", "m1/7"));
  before.Split(Joins("a", "n", "m2"), Joins("c", "n", "m2"), "refused");
  HostTable after(before.state());
  EXPECT_EQ(after.state(), before.state());
  EXPECT_EQ(after.NumberOf(Joins("d", "", "m1/7")).host, 1);
  EXPECT_EQ(after.NumberOf(Joins("d", "n", "m2")).host, 0);
  EXPECT_EQ(after.NumberOf(Joins("c", "n", "m2")).host, -1);
  EXPECT_THAT(after.NumberOf(Joins("d", "n", "m3")).news, HasSubstr("a and d"));
}

TEST(HostTableTest, FullTableGivesNoMoreNumbers) {
  HostTable table;
  for (int i = 0; i < kHostsMax; ++i) {
    ASSERT_EQ(table.NumberOf(Joins("a", "", absl::StrCat(i))).host, i);
    ASSERT_TRUE(
        table.Split(Joins("a", "", ""), Joins(absl::StrCat(i), "", ""), "")
            .has_value());
  }
  EXPECT_EQ(table.NumberOf(Joins("b", "", "another")).host, -1);
  EXPECT_EQ(table.NumberOf(Joins("b", "", "7")).host, 7);
  EXPECT_FALSE(table.Split(Joins("a", "", ""), Joins("b", "", ""), ""));
  EXPECT_FALSE(table.IsSplit(Joins("b", "", "").incarnation));
}

TEST(HostTableTest, SplitProcessesThatAreGoneAreForgotten) {
  HostTable table;
  const JoinRequest a = Joins("a", "n", "m1");
  const JoinRequest b = Joins("b", "n", "m1");
  const JoinRequest c = Joins("c", "n", "m1");
  EXPECT_THAT(*table.Split(a, b, ""), HasSubstr("and say --node=n: "));
  table.Split(a, c, "");
  table.KeepSplits({a.incarnation, c.incarnation});
  EXPECT_FALSE(table.IsSplit(b.incarnation));
  EXPECT_TRUE(table.IsSplit(c.incarnation));
}

}  // namespace
}  // namespace nereus
