// Storages: the contract of all kinds, what only files do, and the faults of
// the simulated one.

#include "common/checkpoint/storage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/file_storage.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

absl::Status Write(Storage& storage, const std::string& name,
                   std::string text) {
  return storage.WriteFile(name, {Buffer::View(text.data(), std::ssize(text))});
}

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

  absl::Status Write(const std::string& name, const std::string& text) {
    return nereus::Write(*storage_, name, text);
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
  EXPECT_THAT(write(), IsAlreadyExists("a/file exists"));
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
  EXPECT_THAT(status,
              IsError(absl::StatusCode::kResourceExhausted, "File too large"));
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
  EXPECT_THAT(storage->List("").status(), IsUnavailable(root + "/loop: "));
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
  EXPECT_NE(*FolderId(NewFolder("other")), *first);
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
    EXPECT_THAT(second.status(), IsFailedPrecondition(folder));
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
  EXPECT_THAT(FolderId(folder).status(), IsUnavailable("Is a directory"));
}

TEST(FolderIdTest, MissingFolderIsAnError) {
  EXPECT_FALSE(FolderId(NewFolder("x") + "/missing").ok());
}

TEST(SimulatedStorageTest, CrashLeavesTheOldOrTheNewFile) {
  int old_files = 0;
  int torn_files = 0;
  for (int64_t steps = 0; steps < 4; ++steps) {
    SCOPED_TRACE(steps);
    SimulatedStorage storage(/*seed=*/1);
    ASSERT_TRUE(Write(storage, "file", "old").ok());
    storage.CrashAfterSteps(steps);
    EXPECT_EQ(Write(storage, "file", "brand new").code(),
              absl::StatusCode::kUnavailable);
    EXPECT_TRUE(storage.crashed());
    EXPECT_EQ(storage.FileBytes("file").status().code(),
              absl::StatusCode::kUnavailable);
    storage.Restart();
    EXPECT_TRUE(storage.Contents("file") == "old" ||
                storage.Contents("file") == "brand new");
    old_files += storage.Contents("file") == "old" ? 1 : 0;
    const auto entries = storage.List("");
    for (const StorageEntry& entry : *entries) {
      torn_files += absl::EndsWith(entry.name, kTemporarySuffix) ? 1 : 0;
    }
  }
  EXPECT_EQ(old_files, 3);
  EXPECT_EQ(torn_files, 2);
}

TEST(SimulatedStorageTest, FaultsAreDrawnFromTheSeed) {
  const auto run = [](uint64_t seed) {
    SimulatedStorage storage(
        seed, {.failure_probability = 0.3, .crash_probability = 0.1});
    std::vector<absl::StatusCode> codes;
    for (int i = 0; i < 50; ++i) {
      if (storage.crashed()) storage.Restart();
      codes.push_back(Write(storage, "file", "text").code());
    }
    return codes;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

TEST(SimulatedStorageTest, LyingDiskTearsOnlyItsLastFiles) {
  int torn = 0;
  int zeroed = 0;
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedStorage storage(seed, {.lies = true, .unflushed_files_max = 2});
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(Write(storage, name, "contents").ok());
    }
    storage.CrashAfterSteps(0);
    EXPECT_FALSE(Write(storage, "d", "contents").ok());
    storage.Restart();
    EXPECT_EQ(storage.Contents("a"), "contents");
    for (const char* name : {"b", "c"}) {
      const std::string left = storage.Contents(name);
      const std::string kept = left.substr(0, left.find('\0'));
      EXPECT_TRUE(absl::StartsWith("contents", kept));
      EXPECT_TRUE(left == kept || left.size() == 8) << left.size();
      torn += left == "contents" ? 0 : 1;
      zeroed += left != kept ? 1 : 0;
    }
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(torn, zeroed);
    EXPECT_GT(zeroed, 0);
  }
}

TEST(SimulatedStorageTest, CrashTearsTheFileBeingWritten) {
  const std::string before(200, '1');
  const std::string contents(200, '2');
  int cut = 0;
  int stale = 0;
  int wrong_digits = 0;
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedStorage storage(seed, {.tears = true});
    ASSERT_TRUE(Write(storage, "a/file", before).ok());
    storage.CrashAfterSteps(static_cast<int64_t>(seed % 4));
    EXPECT_FALSE(Write(storage, "b/file", contents).ok());
    storage.Restart();
    EXPECT_EQ(storage.Contents("a/file"), before);
    EXPECT_FALSE(storage.torn("a/file"));
    if (!storage.torn("b/file")) continue;
    const std::string left = storage.Contents("b/file");
    EXPECT_NE(left, contents);
    cut += left.size() < contents.size() ? 1 : 0;
    stale += absl::StrContains(left, "1") ? 1 : 0;
    wrong_digits += absl::StrContains(left, "3") ? 1 : 0;
    ASSERT_TRUE(Write(storage, "b/file", contents).ok());
    EXPECT_FALSE(storage.torn("b/file"));
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(cut, 10);
    EXPECT_GT(stale, 10);
    EXPECT_GT(wrong_digits, 10);
  }
}

}  // namespace
}  // namespace nereus
