#include "server/process/disk_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nereus {
namespace {

// A gate that tasks wait at, as for a disk that hangs.
struct Gate {
  void Open() {
    MutexLock lock(&mu);
    is_open = true;
  }
  void Await() {
    MutexLock lock(&mu);
    mu.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return is_open; });
  }
  Mutex mu;
  bool is_open ABSL_GUARDED_BY(mu) = false;
};

DiskThread::Report Nothing() {
  return [] {};
}

TEST(DiskThreadTest, TasksAndTheirReportsComeInOrder) {
  std::vector<int> order;
  DiskThread disk;
  for (int i = 0; i < 3; ++i) {
    disk.Add("work", [&order, i]() -> DiskThread::Report {
      order.push_back(2 * i);
      return [&order, i] { order.push_back(2 * i + 1); };
    });
  }
  EXPECT_TRUE(disk.Finish(absl::Minutes(1)));
  EXPECT_EQ(order, std::vector<int>({0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(disk.running().has_value());
}

TEST(DiskThreadTest, RunningTaskIsKnownByItsName) {
  const auto gate = std::make_shared<Gate>();
  const auto begun = std::make_shared<Gate>();
  DiskThread disk;
  disk.Add("writing the manifest of round 7", [gate, begun] {
    begun->Open();
    gate->Await();
    return Nothing();
  });
  begun->Await();
  const auto running = disk.running();
  ASSERT_TRUE(running.has_value());
  EXPECT_EQ(running->what, "writing the manifest of round 7");
  EXPECT_GE(running->time, absl::ZeroDuration());
  EXPECT_FALSE(disk.Finish(absl::Milliseconds(1)));
  gate->Open();
  EXPECT_TRUE(disk.Finish(absl::Minutes(1)));
}

// The first task goes on when the second one is dropped.
TEST(DiskThreadTest, DestructorDropsTasksThatWait) {
  std::atomic<int> done = 0;
  const auto begun = std::make_shared<Gate>();
  const auto gate = std::make_shared<Gate>();
  auto disk = std::make_unique<DiskThread>();
  disk->Add("work", [&done, begun, gate]() -> DiskThread::Report {
    begun->Open();
    gate->Await();
    return [&done] { ++done; };
  });
  std::shared_ptr<void> dropped(nullptr, [gate](void*) { gate->Open(); });
  disk->Add("work", [&done, dropped]() -> DiskThread::Report {
    done += 2;
    return Nothing();
  });
  dropped.reset();
  begun->Await();
  disk.reset();
  EXPECT_LE(done, 1);
  EXPECT_FALSE(IsDiskThreadLeftBehind());
}

// The thread touches nothing of an owner that is gone.
TEST(DiskThreadTest, DestructorLeavesATaskBehindThatHangs) {
  const auto begun = std::make_shared<Gate>();
  const auto gate = std::make_shared<Gate>();
  const auto went_on = std::make_shared<Gate>();
  auto reported = std::make_shared<std::atomic<bool>>(false);
  auto disk = std::make_unique<DiskThread>();
  EXPECT_FALSE(IsDiskThreadLeftBehind());
  disk->Add("work", [=]() -> DiskThread::Report {
    begun->Open();
    gate->Await();
    went_on->Open();
    return [reported] { *reported = true; };
  });
  begun->Await();
  const absl::Time from = SteadyNow();
  disk.reset();
  EXPECT_GE(SteadyNow() - from, DiskThread::kEndLimit);
  EXPECT_LT(SteadyNow() - from, DiskThread::kEndLimit + absl::Seconds(30));
  EXPECT_TRUE(IsDiskThreadLeftBehind());
  gate->Open();
  went_on->Await();
  // The thread ends soon, and holds `reported` until then.
  while (reported.use_count() > 1) {
  }
  EXPECT_FALSE(*reported);
}

}  // namespace
}  // namespace nereus
