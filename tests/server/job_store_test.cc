#include "server/process/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/state.pb.h"
#include "server/coordinator/job_state.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/some_state.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kJob[] = "training";

void ExpectInvalid(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

class JobStoreTest : public testing::Test {
 protected:
  JobStoreTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  std::unique_ptr<JobStore> Open() {
    auto store = JobStore::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  void Write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  std::string Read() {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Executes SQL as another program would.
  void Execute(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &error),
              SQLITE_OK)
        << error;
    sqlite3_close(database);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/job_store");
  const std::string path_ = absl::StrCat(folder_, "/state.db");
};

TEST_F(JobStoreTest, ANewStoreIsEmpty) {
  const auto store = Open();
  const auto state = store->Load(kJob);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE(state->has_value());
}

TEST_F(JobStoreTest, ASavedStateIsLoadedAfterTheStoreIsReopened) {
  ASSERT_TRUE(Open()->Save(kJob, SomeState()).ok());
  const auto store = Open();
  const auto state = store->Load(kJob);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE(state->has_value());
  EXPECT_EQ(EncodeState(**state), EncodeState(SomeState()));
  EXPECT_FALSE(store->Load("another")->has_value());
}

// The state has what lets a process resume as a member.
TEST_F(JobStoreTest, OnlyItsUserMayReadTheStore) {
  const mode_t before = umask(0);
  const auto store = Open();
  umask(before);
  ASSERT_TRUE(store->Save(kJob, SomeState()).ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.status().permissions(),
              std::filesystem::perms::owner_read |
                  std::filesystem::perms::owner_write)
        << entry.path();
  }
}

TEST_F(JobStoreTest, ALaterStateReplacesTheEarlierOne) {
  const auto store = Open();
  ASSERT_TRUE(store->Save(kJob, SomeState()).ok());
  CoordinatorState later = SomeState();
  later.next_rank = 77;
  ASSERT_TRUE(store->Save(kJob, later).ok());
  EXPECT_EQ((*store->Load(kJob))->next_rank, 77);
}

TEST_F(JobStoreTest, JobsAreKeptApart) {
  const auto store = Open();
  CoordinatorState other = SomeState();
  other.next_rank = 77;
  ASSERT_TRUE(store->Save(kJob, SomeState()).ok());
  ASSERT_TRUE(store->Save("o'ther", other).ok());
  EXPECT_EQ((*store->Load(kJob))->next_rank, 5);
  EXPECT_EQ((*store->Load("o'ther"))->next_rank, 77);
}

TEST_F(JobStoreTest, ASecondCoordinatorIsRefusedWhileTheFirstHasTheStore) {
  auto first = Open();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto second = JobStore::Open(path_);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_));
  }
  ASSERT_TRUE(first->Save(kJob, SomeState()).ok());
  first.reset();
  EXPECT_TRUE((*Open()->Load(kJob)).has_value());
}

TEST_F(JobStoreTest, AFileThatIsNoDatabaseIsRefusedAndStaysAsItWas) {
  const std::string text(5000, 'x');
  Write(text);
  ExpectInvalid(JobStore::Open(path_).status(), path_);
  EXPECT_EQ(Read(), text);
}

TEST_F(JobStoreTest, AnotherProgramsDatabaseIsRefusedAndStaysAsItWas) {
  Execute("CREATE TABLE jobs (name TEXT, salary INTEGER)");
  const std::string before = Read();
  ExpectInvalid(JobStore::Open(path_).status(),
                "is a SQLite file of application 0, version 0");
  EXPECT_EQ(Read(), before);
}

TEST_F(JobStoreTest, AnotherVersionIsRefused) {
  Open().reset();
  Execute("PRAGMA user_version = 2");
  ExpectInvalid(JobStore::Open(path_).status(), "version 2");
}

TEST_F(JobStoreTest, MissingFolderIsAnError) {
  const auto store = JobStore::Open(absl::StrCat(folder_, "/none/state.db"));
  EXPECT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("/none/"));
}

TEST_F(JobStoreTest, AStateThatCannotBeDecodedIsDataLoss) {
  for (const char* blob : {"x'ffffffff'", "x''", "'text'"}) {
    ASSERT_TRUE(Open()->Save(kJob, SomeState()).ok());
    Execute(absl::StrCat("UPDATE jobs SET state = ", blob));
    const auto state = Open()->Load(kJob);
    EXPECT_EQ(state.status().code(), absl::StatusCode::kDataLoss) << blob;
    EXPECT_THAT(std::string(state.status().message()),
                HasSubstr(absl::StrCat(path_, ": job training: ")));
  }
}

TEST_F(JobStoreTest, ATornFileIsNotTakenForANewStore) {
  CoordinatorState large = SomeState();
  large.reason.assign(50'000, 'a');
  ASSERT_TRUE(Open()->Save(kJob, large).ok());
  const std::string whole = Read();
  for (const size_t bytes : {size_t{100}, size_t{4096}, whole.size() / 2}) {
    Write(whole.substr(0, bytes));
    const auto store = JobStore::Open(path_);
    if (!store.ok()) continue;
    const auto state = (*store)->Load(kJob);
    EXPECT_FALSE(state.ok()) << bytes;
  }
}

TEST(JobStateTest, EveryFieldIsRestored) {
  const CoordinatorState before = SomeState();
  const auto after = DecodeState(EncodeState(before));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->state, before.state);
  EXPECT_EQ(after->reason, before.reason);
  const Job& job = *after->epoch.job;
  EXPECT_EQ(job.id, before.epoch.job->id);
  EXPECT_EQ(job.epoch, before.epoch.job->epoch);
  EXPECT_EQ(job.workers, before.epoch.job->workers);
  EXPECT_EQ(job.crew.left_workers, before.epoch.job->crew.left_workers);
  EXPECT_EQ(job.layers, before.epoch.job->layers);
  EXPECT_EQ(job.routes, before.epoch.job->routes);
  EXPECT_EQ(job.options, before.epoch.job->options);
  EXPECT_EQ(job.shards(), before.epoch.job->shards());
  EXPECT_EQ(job.state_arrays, 3);
  EXPECT_EQ(job.history.base_round, 8);
  EXPECT_EQ(job.history.first_step, 21);
  EXPECT_EQ(job.history.contributions_before, 42);
  EXPECT_EQ(job.history.finished_rounds,
            before.epoch.job->history.finished_rounds);
  EXPECT_EQ(job.history.donor, 1);
  EXPECT_EQ(job.checkpoint_round, 22);
  ASSERT_THAT(after->epoch.explanations, SizeIs(2));
  EXPECT_EQ(after->epoch.explanations[1].factor_elements, 30);
  EXPECT_EQ(after->epoch.explanations[0].reason, "no factors");
  EXPECT_EQ(after->next_rank, 5);
  EXPECT_EQ(after->epoch.members, before.epoch.members);
  EXPECT_TRUE(after->epoch.all_from_base);
  EXPECT_EQ(after->epoch.workers_from_base, before.epoch.workers_from_base);
  EXPECT_EQ(after->epoch.broken_links, before.epoch.broken_links);
  EXPECT_TRUE(after->checkpoint_wanted);
  EXPECT_EQ(after->hosts, before.hosts);
  EXPECT_EQ(after->gatherings, before.gatherings);
  EXPECT_EQ(after->lobby, before.lobby);
}

TEST(JobStateTest, JobThatHasNotBegunHasALobbyOnly) {
  CoordinatorState before;
  before.lobby = {{0, {"a", std::string(1, '\0')}, ""}, {1, {}, "too long"}};
  auto after = DecodeState(EncodeState(before));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->state, JobState::kWaiting);
  EXPECT_EQ(after->epoch.job, nullptr);
  EXPECT_EQ(after->lobby, before.lobby);
  before.state = JobState::kFailed;
  before.reason = "the disk is gone";
  after = DecodeState(EncodeState(before));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->reason, "the disk is gone");
  before.state = JobState::kRunning;
  EXPECT_EQ(DecodeState(EncodeState(before)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JobStateTest, AnswersOfTheLobbyWithGapsAreRefused) {
  CoordinatorState state;
  state.lobby = {{1, {"a"}, ""}};
  ExpectInvalid(DecodeState(EncodeState(state)).status(),
                "answer 0 of the lobby has the index 1");
}

TEST(JobStateTest, HostsWithEqualClaimsOrWithoutAMachineAreRefused) {
  const HostTable::Host kWrong[] = {{{"rack-3", "machine-0"}, "a"},
                                    {{"rack-3", ""}, "a"}};
  for (const HostTable::Host& wrong : kWrong) {
    CoordinatorState state = SomeState();
    state.hosts.hosts.push_back(wrong);
    ExpectInvalid(DecodeState(EncodeState(state)).status(),
                  "host 2 of 3 in the state");
  }
}

TEST(JobStateTest, AnEpochThatLacksAMemberOfTheJobIsRefused) {
  CoordinatorState state = SomeState();
  state.epoch.members.pop_back();
  ExpectInvalid(DecodeState(EncodeState(state)).status(),
                "has 4 epoch_members");
}

TEST(JobStateTest, EveryMemberIsRestored) {
  const CoordinatorState before = SomeState();
  const auto after = DecodeState(EncodeState(before));
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_EQ(after->members.size(), before.members.size());
  for (size_t i = 0; i < before.members.size(); ++i) {
    const CoordinatorState::Member& found = after->members[i];
    const CoordinatorState::Member& member = before.members[i];
    EXPECT_EQ(found.id, member.id);
    EXPECT_EQ(found.left, i == 2);
    EXPECT_EQ(found.last_step, member.last_step);
    EXPECT_EQ(found.life.first_step, member.life.first_step);
    EXPECT_EQ(found.life.epoch, member.life.epoch);
    EXPECT_EQ(found.request.role, member.request.role);
    EXPECT_EQ(found.request.shard, member.request.shard);
    EXPECT_EQ(found.request.incarnation, member.request.incarnation);
    EXPECT_EQ(found.request.name, member.request.name);
    EXPECT_EQ(found.request.data_address, member.request.data_address);
    EXPECT_EQ(found.request.caller.state_arrays, 3);
    EXPECT_EQ(found.request.host, member.request.host);
    EXPECT_EQ(found.request.has_checkpoints, member.request.has_checkpoints);
    EXPECT_THAT(found.request.layers, IsEmpty());
  }
}

TEST(JobStateTest, CheckpointsAreRestored) {
  const auto after = DecodeState(EncodeState(SomeState()));
  ASSERT_TRUE(after.ok()) << after.status();
  const CheckpointLedger::State& checkpoints = after->checkpoints;
  ASSERT_THAT(checkpoints.stretches, SizeIs(2));
  EXPECT_EQ(checkpoints.stretches[1].first_step, 21);
  EXPECT_EQ(checkpoints.stretches[1].contributions_before, 42);
  EXPECT_EQ(checkpoints.stretches[1].workers, 3);
  EXPECT_EQ(checkpoints.restarted_in, 4u);
  ASSERT_TRUE(checkpoints.newest.has_value());
  EXPECT_EQ(checkpoints.newest->round, 12);
  EXPECT_EQ(checkpoints.newest->contributions, 26);
  ASSERT_THAT(checkpoints.newest->files, SizeIs(2));
  EXPECT_EQ(checkpoints.newest->files[0].name, "shard-0");
  EXPECT_EQ(checkpoints.newest->files[0].bytes, 1234);
  EXPECT_EQ(checkpoints.newest->files[0].crc, 0xdeadbeef);
}

TEST(JobStateTest, MemberThatIsNotInTheEpochOrOccursTwiceIsRefused) {
  for (const PeerId id :
       {PeerId::Shard(2), PeerId::Worker(2), PeerId::Worker(4)}) {
    CoordinatorState state = SomeState();
    state.members[0].id = id;
    ExpectInvalid(DecodeState(EncodeState(state)).status(), PeerName(id));
  }
}

TEST(JobStateTest, StateWithoutACheckpointIsRestoredWithoutACheckpoint) {
  CoordinatorState state = SomeState();
  state.checkpoints.newest.reset();
  EXPECT_FALSE(DecodeState(EncodeState(state))->checkpoints.newest.has_value());
}

TEST(JobStateTest, MissingOrRepeatedOptionIsNamed) {
  v1::CoordinatorState message;
  ASSERT_TRUE(message.ParseFromString(EncodeState(SomeState())));
  auto& settings =
      *message.mutable_job()->mutable_options()->mutable_settings();
  const v1::Setting last = *settings.rbegin();
  settings.RemoveLast();
  absl::Status status = DecodeState(message.SerializeAsString()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "the job's " + last.name() + " is missing");
  *settings.Add() = last;
  *settings.Add() = last;
  status = DecodeState(message.SerializeAsString()).status();
  EXPECT_EQ(std::string(status.message()),
            "the job's " + last.name() + " is given twice");
}

TEST(JobStateTest, OptimizerOfAJobThatRunsHasItsPlace) {
  v1::CoordinatorState message;
  ASSERT_TRUE(message.ParseFromString(EncodeState(SomeState())));
  for (v1::Setting& setting :
       *message.mutable_job()->mutable_options()->mutable_settings()) {
    if (setting.name() == "optimizer") setting.set_value("auto");
  }
  ExpectInvalid(DecodeState(message.SerializeAsString()).status(),
                "optimizer is auto");
}

}  // namespace
}  // namespace nereus
