// nereusctl trace and nereusctl explain, with real processes; and traces of a
// job whose members come and go, with the threads of all processes in this
// process, for ThreadSanitizer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/admin_client.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/script_run.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// A job of two servers and four workers. The clock of worker d is 1,000 s ahead
// where the system can do that; then $skewed is 1.
constexpr char kJob[] = R"(
start_server --shard=0 --servers=2 --workers=4
$server --shard=1 --coordinator=$control > $dir/shard1.log 2>&1 &
worker() {
  $ahead $worker --coordinator=$control --name=$1 --model=mlp --limit=400 \
    --epochs=100000 --delay=0.002 --log-level=info > $dir/worker_$1.log 2>&1 &
}
for name in a b c; do worker $name; done
skewed=0
if unshare -T --monotonic 1000 true 2> /dev/null; then
  skewed=1
  ahead='unshare -T --monotonic 1000 --fork --kill-child'
fi
worker d
await "epoch 1" $dir/server.log
sleep 1
)";

// Checks the files in a folder, in Python.
constexpr char kCheck[] = R"PYTHON(import collections, json, sys, tarfile
folder, skewed = sys.argv[1], sys.argv[2] == "1"
tar = tarfile.open(folder + "/trace.tar")
manifest = json.load(tar.extractfile("perfetto_manifest.json"))
attributes = manifest["perfetto_manifest"]["attributes"]
job = json.load(tar.extractfile("job.json"))
events = job["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events
         if e["name"] == "process_name"}
assert sorted(names.values()) == ["shard 0", "shard 1"] + [
    "worker " + name for name in "abcd"], names

# Each worker has each step.
first = attributes["nereus.first_step"]
slices = [e for e in events if e["ph"] == "X"]
for pid, name in names.items():
    own = [e for e in slices if e["pid"] == pid]
    assert own, name
    if name.startswith("worker"):
        steps = {e["args"]["step"] for e in own if e["cat"] == "forward"}
        assert steps == set(range(first, first + 5)), (name, steps)

# A frame arrives after it was sent, but for the errors of two clocks.
ends = collections.defaultdict(dict)
for e in events:
    if e["ph"] in "sf":
        ends[e["id"]][e["ph"]] = e
crossing = [pair for pair in ends.values()
            if len(pair) == 2 and pair["s"]["pid"] != pair["f"]["pid"]]
assert len(crossing) > 50, len(crossing)
worst = max(pair["s"]["ts"] - pair["f"]["ts"] for pair in crossing)
errors = sorted(value for name, value in attributes.items()
                if name.endswith("clock_error_ns"))
assert worst * 1e3 <= errors[-1] + errors[-2], (worst, errors)

offset = attributes["nereus.worker d.clock_offset_ns"]
error = attributes["nereus.worker d.clock_error_ns"]
print("offset", offset, "error", error)
assert abs(offset - (-1000e9 if skewed else 0)) <= error, (offset, error)

explained = json.load(open(folder + "/explained.json"))
assert len(explained["workers"]) == 4
assert explained["step_seconds"] > 0.002
print("checked, clock of worker d", "ahead" if skewed else "not changed")
)PYTHON";

class TraceTest : public ScriptRun, public testing::Test {};

// Traces the job, and checks the files.
constexpr char kTrace[] = R"SH(
$ctl trace --server=$control --steps=5 --out=$dir/trace.tar || exit 1
echo "first: $($ctl trace --server=$control --steps=1:3 --out=$dir/x 2>&1)"
$ctl explain $dir/trace.tar || exit 1
$ctl explain $dir/trace.tar --json > $dir/explained.json || exit 1
python3 $dir/check.py $dir $skewed
)SH";

TEST_F(TraceTest, TraceOfARunningJobShowsEachGradientsWay) {
  const std::string script = absl::StrCat(
      kJob, "cat > $dir/check.py <<'TEXT'\n", kCheck, "TEXT\n", kTrace);
  EXPECT_EQ(RunScript(script), 0) << output();
  EXPECT_THAT(output(),
              AllOf(HasSubstr("checked, clock of worker d"),
                    HasSubstr("6 members"), HasSubstr("An iteration takes"),
                    HasSubstr("first: nereusctl trace: "),
                    HasSubstr("step 1 has begun already")));
}

TEST_F(TraceTest, TracesEndAlsoIfTheyCannotBeMade) {
  EXPECT_EQ(RunScript(absl::StrCat(kJob, R"SH(
kill -9 $!
n=0
until $ctl trace --server=$control --steps=20 --out=$dir/trace.tar; do
  n=$((n + 1)); [ $n -lt 20 ] || exit 1; sleep 0.5
done
$ctl trace --server=$control --steps=20000 --timeout=1 --out=$dir/late.tar
echo "late: $?"
$ctl trace --server=$control --steps=20000 --out=$dir/long.tar &
sleep 0.5
echo "second: $($ctl trace --server=$control --steps=5 --out=$dir/x 2>&1)"
kill $!
n=0
until $ctl trace --server=$control --steps=5 --out=$dir/again.tar; do
  n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1
done
)SH")),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("late: 1\n"));
  EXPECT_THAT(output(), HasSubstr("the job is being traced already"));
  EXPECT_THAT(output(), HasSubstr("were not done within --timeout=1 s"));
}

constexpr int kTraces = 3;  // Traces that must be made.
constexpr int64_t kStepsOfGuest = 8;

// Joins the job, does some steps, and leaves early or dies, perhaps while it
// sends its spans.
absl::Status VisitJob(const LocalCluster& cluster, int visit) {
  ToyWorker worker(SmallModel());
  NEREUS_TRY(worker.Connect(cluster.client_options()));
  for (int64_t i = 0; i < kStepsOfGuest; ++i) {
    NEREUS_TRY(worker.NextStep().status());
  }
  if (visit % 2 == 0) return worker.client()->LeaveEarly();
  worker.Die();
  return absl::OkStatus();
}

TEST(TraceThreadsTest, MembersComeAndGoWhileTheJobIsTraced) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.max_workers = 3;
  options.spec.shards = 2;
  LocalCluster cluster(options);
  std::atomic<bool> traced{false};
  std::atomic<bool> done{false};  // The guests have gone, too.

  std::thread guests([&] {
    EXPECT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.steps.begun > 5; }));
    for (int visit = 0; !traced; ++visit) {
      const absl::Status visited = VisitJob(cluster, visit);
      // The place of a dead worker is free only when it counts as dead.
      const bool is_full = absl::IsResourceExhausted(visited);
      EXPECT_TRUE(visited.ok() || is_full) << visited;
      if (is_full) absl::SleepFor(absl::Milliseconds(100));
    }
    done = true;
  });
  std::thread operators([&] {
    int made = 0;
    const absl::Time deadline = absl::Now() + LocalCluster::kPatience;
    while (made < kTraces && absl::Now() < deadline) {
      const auto trace =
          FetchTrace(cluster.coordinator_address(), {.steps = 3},
                     absl::Seconds(5), [](const JobTrace&, int64_t) {});
      if (!trace.ok()) continue;  // A member has gone.
      ++made;
      EXPECT_GE(trace->members.size(), 4u);
    }
    EXPECT_EQ(made, kTraces);
    traced = true;
  });
  const auto results = cluster.RunWorkers(2, [&](int) -> absl::Status {
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(cluster.client_options()));
    while (!done) NEREUS_TRY(worker.NextStep().status());
    return worker.client()->Leave();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  operators.join();
  guests.join();
}

}  // namespace
}  // namespace nereus
