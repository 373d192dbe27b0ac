#include "server/admin/find_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace nereus {
namespace {

using testing::HasSubstr;

class FindCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/find_command";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/a/tool");
    std::filesystem::create_directories(folder_ + "/b");
    std::ofstream(folder_ + "/b/tool") << "#!/bin/sh\n";
    std::ofstream(folder_ + "/b/text") << "no program\n";
    chmod((folder_ + "/b/tool").c_str(), 0755);
    const char* const path = getenv("PATH");
    path_ = path == nullptr ? "" : path;
    setenv("PATH", (folder_ + "/a:" + folder_ + "/b").c_str(), 1);
  }
  void TearDown() override { setenv("PATH", path_.c_str(), 1); }

  std::string folder_;
  std::string path_;
};

// A folder and a file that is not executable are no programs.
TEST_F(FindCommandTest, TakesTheFirstProgramInThePath) {
  const auto found = FindCommand("tool");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, folder_ + "/b/tool");
  EXPECT_EQ(FindCommand("text").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FindCommandTest, NameWithASlashIsAPath) {
  const auto found = FindCommand(folder_ + "/b/tool");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, folder_ + "/b/tool");
  EXPECT_EQ(FindCommand(folder_ + "/a/tool").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(FindCommandTest, ErrorTellsWhyAPathIsNoProgram) {
  std::ofstream(folder_ + "/b/train.py") << "print()\n";
  const struct {
    const char* name;
    const char* reason;
  } kCases[] = {
      {"/b/text", "is not executable: chmod +x "},
      {"/b/train.py", "/b/train.py, or python3 "},
      {"/a/tool", "is a folder"},
      {"/b/nothing", "does not exist"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = FindCommand(folder_ + c.name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.reason));
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ + c.name));
  }
  EXPECT_THAT(std::string(FindCommand("text").status().message()),
              HasSubstr(folder_ + "/b/text is not executable"));
}

TEST_F(FindCommandTest, WithoutAPathTheCurrentFolderHasNoPrograms) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_ + "/b");
  unsetenv("PATH");
  EXPECT_EQ(FindCommand("tool").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(FindCommand("sh").ok());
  std::filesystem::current_path(before);
}

TEST_F(FindCommandTest, MissingProgramIsNamedWithTheFolders) {
  EXPECT_THAT(std::string(FindCommand("nothing").status().message()),
              HasSubstr("no program nothing in the folders of $PATH: " +
                        folder_ + "/a:"));
}

}  // namespace
}  // namespace nereus
