// Contract of all storages. file_storage_test and simulated_storage_test test
// what only one kind does.

#include "common/checkpoint/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/file_storage.h"
#include "tests/simulation/simulated_storage.h"

namespace nereus {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Storage> MakeFileStorage() {
  const std::string root = absl::StrCat(
      testing::TempDir(), "/storage-",
      testing::UnitTest::GetInstance()->current_test_info()->line());
  std::filesystem::remove_all(root);
  auto storage = FileStorage::Open(root);
  EXPECT_TRUE(storage.ok()) << storage.status();
  return *std::move(storage);
}

std::unique_ptr<Storage> MakeSimulatedStorage() {
  return std::make_unique<SimulatedStorage>(/*seed=*/0);
}

struct StorageKind {
  const char* name;
  std::unique_ptr<Storage> (*make)();
};

class StorageTest : public testing::TestWithParam<StorageKind> {
 protected:
  StorageTest() : storage_(GetParam().make()) {}

  absl::Status Write(const std::string& name, std::string text) {
    return storage_->WriteFile(name,
                               {Buffer::View(text.data(), std::ssize(text))});
  }

  absl::StatusOr<std::string> Read(const std::string& name, int64_t offset,
                                   int64_t bytes) {
    std::string text(bytes, '?');
    const absl::Status status =
        storage_->ReadFile(name, offset, Buffer::View(text.data(), bytes));
    if (!status.ok()) return status;
    return text;
  }

  std::vector<StorageEntry> List(const std::string& folder) {
    const auto entries = storage_->List(folder);
    EXPECT_TRUE(entries.ok()) << entries.status();
    return entries.ok() ? *entries : std::vector<StorageEntry>();
  }

  const std::unique_ptr<Storage> storage_;
};

TEST_P(StorageTest, FileHoldsItsPiecesInOrder) {
  std::string first = "first";
  std::string second = "second";
  ASSERT_TRUE(storage_
                  ->WriteFile("file", {Buffer::View(first.data(), 5), Buffer(),
                                       Buffer::View(second.data(), 6)})
                  .ok());
  EXPECT_EQ(*storage_->FileBytes("file"), 11);
  EXPECT_EQ(*Read("file", 0, 11), "firstsecond");
  EXPECT_EQ(*Read("file", 4, 3), "tse");
  EXPECT_EQ(*Read("file", 11, 0), "");
}

TEST_P(StorageTest, FileMayBeEmpty) {
  ASSERT_TRUE(storage_->WriteFile("file", {}).ok());
  EXPECT_EQ(*storage_->FileBytes("file"), 0);
  EXPECT_EQ(*Read("file", 0, 0), "");
}

TEST_P(StorageTest, ReadingPastTheEndIsRefused) {
  ASSERT_TRUE(Write("file", "four").ok());
  EXPECT_EQ(Read("file", 0, 5).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("file", 4, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Read("file", 9, 1).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_P(StorageTest, WritingReplacesTheFileAndLeavesNoOther) {
  ASSERT_TRUE(Write("a/b/file", "the first one").ok());
  ASSERT_TRUE(Write("a/b/file", "second").ok());
  EXPECT_EQ(*Read("a/b/file", 0, 6), "second");
  EXPECT_EQ(List("a/b"), (std::vector<StorageEntry>{{"file", false, 6}}));
}

TEST_P(StorageTest, NewFileReplacesNone) {
  std::string text = "first";
  const auto write = [&] {
    return storage_->WriteNewFile(
        "a/file", {Buffer::View(text.data(), std::ssize(text))});
  };
  EXPECT_EQ(write(), absl::OkStatus());
  text = "other";
  const absl::Status refused = write();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a/file exists"));
  EXPECT_EQ(*Read("a/file", 0, 5), "first");
  EXPECT_EQ(List("a"), (std::vector<StorageEntry>{{"file", false, 5}}));
}

TEST_P(StorageTest, FileWithoutItsCacheIsTheSame) {
  storage_->ForgetCached("no/such/file");
  ASSERT_TRUE(Write("file", "four").ok());
  storage_->ForgetCached("file");
  EXPECT_EQ(*Read("file", 0, 4), "four");
}

TEST_P(StorageTest, FilesAndFoldersAreListedByName) {
  ASSERT_TRUE(Write("b", "12").ok());
  ASSERT_TRUE(Write("a/z", "1").ok());
  ASSERT_TRUE(Write("a/c/d", "").ok());
  EXPECT_EQ(List(""),
            (std::vector<StorageEntry>{{"a", true, 0}, {"b", false, 2}}));
  EXPECT_EQ(List("a"),
            (std::vector<StorageEntry>{{"c", true, 0}, {"z", false, 1}}));
}

TEST_P(StorageTest, RemovedFilesAreGone) {
  ASSERT_TRUE(Write("a/file", "1").ok());
  ASSERT_TRUE(Write("a/b/file", "1").ok());
  ASSERT_TRUE(Write("ab/file", "1").ok());
  ASSERT_TRUE(storage_->RemoveFile("a/file").ok());
  EXPECT_EQ(Read("a/file", 0, 1).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(storage_->RemoveTree("a").ok());
  EXPECT_EQ(List(""), (std::vector<StorageEntry>{{"ab", true, 0}}));
}

TEST_P(StorageTest, RenamedFolderKeepsItsFiles) {
  ASSERT_TRUE(Write("a/file", "1").ok());
  ASSERT_TRUE(Write("a/b/file", "2").ok());
  ASSERT_TRUE(Write("ab/file", "3").ok());
  ASSERT_EQ(storage_->RenameFolder("a", "c"), absl::OkStatus());
  EXPECT_EQ(List(""),
            (std::vector<StorageEntry>{{"ab", true, 0}, {"c", true, 0}}));
  EXPECT_EQ(*Read("c/file", 0, 1), "1");
  EXPECT_EQ(*Read("c/b/file", 0, 1), "2");
}

TEST_P(StorageTest, FolderIsNotRenamedToOneThatHasFiles) {
  const auto kRefused = absl::StatusCode::kFailedPrecondition;
  ASSERT_TRUE(Write("a/file", "1").ok());
  ASSERT_TRUE(Write("b/file", "2").ok());
  ASSERT_TRUE(Write("c", "3").ok());
  EXPECT_EQ(storage_->RenameFolder("a", "b").code(), kRefused);
  EXPECT_EQ(storage_->RenameFolder("a", "c").code(), kRefused);
  EXPECT_EQ(storage_->RenameFolder("c", "d").code(), kRefused);
  EXPECT_EQ(*Read("a/file", 0, 1), "1");
  EXPECT_EQ(*Read("b/file", 0, 1), "2");
}

TEST_P(StorageTest, MissingFilesAreNotFound) {
  const auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_EQ(Read("a/file", 0, 1).status().code(), kNotFound);
  EXPECT_EQ(storage_->FileBytes("file").status().code(), kNotFound);
  EXPECT_EQ(storage_->List("a").status().code(), kNotFound);
  EXPECT_EQ(storage_->RemoveFile("a/file").code(), kNotFound);
  EXPECT_EQ(storage_->RemoveTree("a").code(), kNotFound);
  EXPECT_EQ(storage_->RenameFolder("a", "b").code(), kNotFound);
}

TEST_P(StorageTest, NamesOutsideTheRootAreRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const std::string& name :
       {std::string(".."), std::string("a/../../b"), std::string("/etc/b"),
        std::string("a//b"), std::string("a/"), std::string("a/./b"),
        std::string("a\0b", 3), std::string("a b"), std::string("\xc3\xa4"),
        std::string(kStoragePartBytesMax + 1, 'a')}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(Write(name, "1").code(), kInvalid);
    EXPECT_EQ(Read(name, 0, 1).status().code(), kInvalid);
    EXPECT_EQ(storage_->FileBytes(name).status().code(), kInvalid);
    EXPECT_EQ(storage_->List(name).status().code(), kInvalid);
    EXPECT_EQ(storage_->RemoveFile(name).code(), kInvalid);
    EXPECT_EQ(storage_->RemoveTree(name).code(), kInvalid);
    EXPECT_EQ(storage_->RenameFolder(name, "to").code(), kInvalid);
    EXPECT_EQ(storage_->RenameFolder("from", name).code(), kInvalid);
  }
  EXPECT_EQ(Write("", "1").code(), kInvalid);
  EXPECT_EQ(storage_->RemoveTree("").code(), kInvalid);
}

INSTANTIATE_TEST_SUITE_P(Storages, StorageTest,
                         testing::Values(StorageKind{"File", MakeFileStorage},
                                         StorageKind{"Simulated",
                                                     MakeSimulatedStorage}),
                         [](const auto& info) { return info.param.name; });

TEST(StorageNameTest, NameLimitsAreExact) {
  const std::string part(kStoragePartBytesMax, 'a');
  EXPECT_TRUE(ValidateStoragePart(part).ok());
  EXPECT_FALSE(ValidateStoragePart(part + "a").ok());
  std::string name = part;
  while (name.size() + 2 <= kStorageNameBytesMax) name += "/a";
  EXPECT_TRUE(ValidateStorageName(name).ok());
  EXPECT_FALSE(ValidateStorageName(name + "/a").ok());
  EXPECT_TRUE(ValidateStoragePart("..a").ok());
}

}  // namespace
}  // namespace nereus
