#include "server/admin/group_members.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace nereus {
namespace {

// A folder like /proc.
class GroupMembersTest : public testing::Test {
 protected:
  GroupMembersTest() : proc_(testing::TempDir() + "group_members_test") {
    std::filesystem::remove_all(proc_);
  }

  void Add(const std::string& process, const std::string& stat) {
    std::filesystem::create_directories(proc_ + "/" + process);
    std::ofstream(proc_ + "/" + process + "/stat") << stat;
  }

  const std::string proc_;
};

TEST_F(GroupMembersTest, AnotherProcessOfTheGroupIsFound) {
  Add("7", "7 (leader) S 1 7 7\n");
  Add("8", "8 (of ) another (group) R 1 9 9\n");
  Add("self", "no process");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
  Add("9", "9 (a (name) ) S 1 7 7\n");
  EXPECT_TRUE(HasOtherMembers(7, proc_));
}

TEST_F(GroupMembersTest, AProcessThatHasEndedDoesNotCount) {
  Add("8", "8 (zombie) Z 1 7 7\n");
  Add("9", "");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
  EXPECT_FALSE(HasOtherMembers(7, proc_ + "/nothing"));
}

// Reading a folder is an error, as is reading the line of a process that ends
// after its file was opened.
TEST_F(GroupMembersTest, AnErrorOfReadingIsNoException) {
  std::filesystem::create_directories(proc_ + "/8/stat");
  EXPECT_FALSE(HasOtherMembers(7, proc_));
}

}  // namespace
}  // namespace nereus
