#include "common/checkpoint/folder_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/folder_id_", getpid(), "_", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(FolderIdTest, FolderHasTheSameIdByEachPath) {
  const std::string folder = NewFolder("one");
  const auto first = FolderId(folder);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->size(), 16u);
  const std::string link = folder + "_link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(folder, link);
  EXPECT_EQ(*FolderId(link), *first);
}

TEST(FolderIdTest, FoldersHaveDifferentIds) {
  EXPECT_NE(*FolderId(NewFolder("a")), *FolderId(NewFolder("b")));
}

TEST(FolderIdTest, ConcurrentProcessesGetTheSameId) {
  const std::string folder = NewFolder("raced");
  std::vector<std::string> ids(8);
  std::vector<std::thread> threads;
  for (std::string& id : ids) {
    threads.emplace_back([&] { id = FolderId(folder).value_or("none"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_NE(ids[0], "none");
}

TEST(FolderIdTest, FolderHoldsOnlyTheIdFile) {
  const std::string folder = NewFolder("clean");
  ASSERT_TRUE(FolderId(folder).ok());
  ASSERT_TRUE(FolderId(folder).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename(), "nereus-folder-id");
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST(FolderLockTest, LockRefusesASecondHolderUntilItsEnd) {
  const std::string folder = NewFolder("locked");
  {
    const auto first = FolderLock::Take(folder);
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = FolderLock::Take(folder);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()),
                testing::HasSubstr(folder));
  }
  EXPECT_TRUE(FolderLock::Take(folder).ok());
}

TEST(FolderIdTest, ForeignIdFileIsRefused) {
  const std::string folder = NewFolder("other");
  std::ofstream(folder + "/nereus-folder-id") << "this is no identity";
  EXPECT_THAT(std::string(FolderId(folder).status().message()),
              testing::HasSubstr("nereus-folder-id is not a folder's id"));
}

TEST(FolderIdTest, UnreadableIdFileIsRefusedWithTheSystemsReason) {
  const std::string folder = NewFolder("unreadable");
  std::filesystem::create_directory(folder + "/nereus-folder-id");
  const absl::Status status = FolderId(folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("Is a directory"));
}

TEST(FolderIdTest, MissingFolderIsAnError) {
  EXPECT_FALSE(FolderId(NewFolder("x") + "/missing").ok());
}

}  // namespace
}  // namespace nereus
