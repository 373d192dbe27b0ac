#include "common/checkpoint/file_storage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {

namespace {

using ::testing::HasSubstr;

// Gives each test its own folder.
std::string NewRoot() {
  const std::string root = absl::StrCat(
      testing::TempDir(), "/file_storage-",
      testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::remove_all(root);
  return root;
}

std::unique_ptr<FileStorage> OpenStorage(const std::string& root) {
  auto storage = FileStorage::Open(root);
  EXPECT_TRUE(storage.ok()) << storage.status();
  return *std::move(storage);
}

absl::Status Write(FileStorage& storage, const std::string& name,
                   std::string text) {
  return storage.WriteFile(name, {Buffer::View(text.data(), std::ssize(text))});
}

int FilesIn(const std::string& folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  return files;
}

TEST(FileStorageTest, OpeningMakesTheRootButNotItsParents) {
  const std::string root = NewRoot();
  EXPECT_EQ(FileStorage::Open(root + "/a").status().code(),
            absl::StatusCode::kNotFound);
  OpenStorage(root + "//");
  OpenStorage(root);
  EXPECT_TRUE(std::filesystem::is_directory(root));
  EXPECT_FALSE(FileStorage::Open("").ok());
}

TEST(FileStorageTest, ErrorsNameThePathAndTheSystemsReason) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  const auto bytes = storage->FileBytes("a/file");
  EXPECT_THAT(std::string(bytes.status().message()),
              HasSubstr(root + "/a/file: No such file or directory"));
}

TEST(FileStorageTest, FileInPlaceOfAFolderIsRefused) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "a", "1").ok());
  ASSERT_TRUE(Write(*storage, "folder/b", "1").ok());
  const auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(Write(*storage, "a/b", "1").code(), kFailedPrecondition);
  EXPECT_EQ(Write(*storage, "folder", "1").code(), kFailedPrecondition);
  EXPECT_EQ(storage->List("a").status().code(), kFailedPrecondition);
  EXPECT_EQ(storage->FileBytes("folder").status().code(), kFailedPrecondition);
  EXPECT_EQ(storage->RemoveTree("a").code(), kFailedPrecondition);
  EXPECT_EQ(storage->RemoveFile("folder").code(), kFailedPrecondition);
  EXPECT_EQ(FileStorage::Open(root + "/a").status().code(),
            kFailedPrecondition);
  EXPECT_EQ(FilesIn(root), 1) << "a temporary file was left";
}

TEST(FileStorageTest, WithoutPermissionNothingIsWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "a/file", "1").ok());
  ASSERT_EQ(chmod((root + "/a").c_str(), 0500), 0);
  EXPECT_EQ(Write(*storage, "a/file", "2").code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(storage->RemoveFile("a/file").code(),
            absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(chmod((root + "/a").c_str(), 0700), 0);
}

// The system's limit of a file's length stands for a full disk.
TEST(FileStorageTest, FailedWriteLeavesTheOldFile) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "file", "old").ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100000;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Write(*storage, "file", std::string(200000, 'n'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("File too large"));
  EXPECT_EQ(*storage->FileBytes("file"), 3);
  EXPECT_EQ(FilesIn(root), 1) << "a temporary file was left";
}

// File systems without hard links, and without renameat2.
TEST(FileStorageTest, NewFileReplacesNoneWithoutLinks) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  const std::string control = absl::StrCat(root, "/../no-links");
  setenv("SLOW_DISK", control.c_str(), /*overwrite=*/1);
  const auto write = [&](const std::string& name, std::string text) {
    return storage->WriteNewFile(name,
                                 {Buffer::View(text.data(), std::ssize(text))});
  };
  int file = 0;
  for (const char* refused :
       {"no-link file", "no-link file no-renameat2 file"}) {
    SCOPED_TRACE(refused);
    std::ofstream(control) << refused << "\n";
    const std::string name = absl::StrCat("file-", ++file);
    EXPECT_EQ(write(name, "first"), absl::OkStatus());
    EXPECT_EQ(write(name, "other").code(), absl::StatusCode::kAlreadyExists);
    std::string text;
    std::ifstream(absl::StrCat(root, "/", name)) >> text;
    EXPECT_EQ(text, "first");
    EXPECT_EQ(FilesIn(root), file);
  }
  unsetenv("SLOW_DISK");
}

TEST(FileStorageTest, RemovalDoesNotFollowLinks) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "keep/file", "1").ok());
  ASSERT_TRUE(Write(*storage, "remove/file", "1").ok());
  std::filesystem::create_directory_symlink(root + "/keep",
                                            root + "/remove/link");
  std::filesystem::create_symlink("nowhere", root + "/remove/broken");
  ASSERT_TRUE(storage->RemoveTree("remove").ok());
  EXPECT_TRUE(storage->FileBytes("keep/file").ok());
}

TEST(FileStorageTest, ForeignFilesAreNotListed) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "file", "1").ok());
  std::ofstream(root + "/a name") << "1";
  ASSERT_EQ(mkfifo((root + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(*storage->List(""),
            (std::vector<StorageEntry>{{"file", false, 1}}));
}

// An error must not hide a file: an older one would take its place.
TEST(FileStorageTest, FileThatCannotBeLookedAtIsAnError) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "a", "1").ok());
  std::filesystem::create_symlink("gone", root + "/dangling");
  EXPECT_EQ(storage->List("")->size(), 1u);
  std::filesystem::create_symlink("loop", root + "/loop");
  const absl::Status status = storage->List("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(root + "/loop: "));
}

// Servers of other users may have to read the files, and must not where the
// process's umask forbids it.
TEST(FileStorageTest, UmaskDecidesWhoMayReadTheFiles) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  for (const mode_t mask : {mode_t{022}, mode_t{077}}) {
    const mode_t before = umask(mask);
    const std::string name = absl::StrCat("file", mask);
    EXPECT_TRUE(Write(*storage, name, "1").ok());
    umask(before);
    struct stat information;
    ASSERT_EQ(stat((root + "/" + name).c_str(), &information), 0);
    EXPECT_EQ(information.st_mode & 0777, 0666u & ~mask);
  }
}

// A reader sees one complete file, from either writer; the writers do not
// disturb each other.
TEST(FileStorageTest, ConcurrentWritersLeaveACompleteFile) {
  const std::string root = NewRoot();
  const auto storage = OpenStorage(root);
  ASSERT_TRUE(Write(*storage, "file", std::string(5000, 'a')).ok());
  std::vector<std::thread> writers;
  for (const char c : {'a', 'b'}) {
    writers.emplace_back([&storage, c] {
      for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(Write(*storage, "file", std::string(5000, c)).ok());
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    std::string text(5000, '?');
    ASSERT_TRUE(
        storage->ReadFile("file", 0, Buffer::View(text.data(), 5000)).ok());
    EXPECT_EQ(text, std::string(5000, text[0]));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(FilesIn(root), 1);
}

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
