// Real processes that are asked to leave: by SIGTERM, and by nereusctl drain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Functions of the scripts. A job of a coordinator, two servers with backups
// and two workers that train until they are told to leave.
constexpr char kJob[] = R"(
coordinator() {
  $server --coordinate-only --control-port=$port --servers=2 --workers=2 \
    --max-workers=4 --backup=1 --state=$dir/state --checkpoint-dir=$dir/ck \
    >> $dir/coordinator.log 2>&1 &
  pid_c=$!
}
shard() {
  $server --shard=$1 --coordinator=127.0.0.1:$port --checkpoint-dir=$dir/ck \
    > $dir/shard$1.$2.log 2>&1 &
  eval pid_s$1=$!
}
worker() {
  $worker --coordinator=127.0.0.1:$port --name=$1 --model=mlp --limit=200 \
    --epochs=${epochs:-100000} --delay=0.01 --log-level=info \
    > $dir/worker$1.$2.log 2>&1 &
  eval pid_w$1=$!
}
status() { $ctl status --server=127.0.0.1:$port --json; }
# Waits until the job has two workers and each shard a current backup.
settled() {
  n=0
  until status > $dir/status 2>/dev/null &&
      python3 - $dir/status <<'TEXT'
import json, sys
job = json.load(open(sys.argv[1]))
here = [w for w in job["workers"] if not w["left"]]
backed = all(s["backup_is_current"] for s in job["shard_servers"])
sys.exit(0 if job["state"] == "running" and len(here) == 2 and backed else 1)
TEXT
  do
    n=$((n + 1))
    if [ $n -ge 600 ]; then echo "not settled"; cat $dir/*.log; exit 97; fi
    sleep 0.1
  done
}
)";

class LeavingTest : public ScriptRun, public testing::Test {};

// The job loses no step, and does not go back to a checkpoint.
TEST_F(LeavingTest, EveryProcessOfAJobIsRestartedInTurn) {
  EXPECT_EQ(RunScript(absl::StrCat(kJob, R"(
coordinator; shard 0 a; shard 1 a; worker a 1; worker b 1
settled
for name in a b; do
  eval kill \$pid_w$name; eval wait \$pid_w$name; echo "worker $name: $?"
  worker $name 2; settled
done
for rank in 0 1; do
  eval kill \$pid_s$rank; eval wait \$pid_s$rank; echo "shard $rank: $?"
  shard $rank b; settled
done
kill $pid_c; wait $pid_c; echo "coordinator: $?"
coordinator; settled
kill $pid_wa $pid_wb
wait $pid_wa; echo "last a: $?"; wait $pid_wb; echo "last b: $?"
wait $pid_s0; echo "stopped 0: $?"; wait $pid_s1; echo "stopped 1: $?"
wait $pid_c; echo "stopped coordinator: $?"
cat $dir/coordinator.log
)")),
            0)
      << output();
  EXPECT_THAT(output(),
              AllOf(HasSubstr("worker a: 143\n"), HasSubstr("worker b: 143\n"),
                    HasSubstr("shard 0: 143\n"), HasSubstr("shard 1: 143\n"),
                    HasSubstr("coordinator: 143\n")));
  EXPECT_THAT(output(),
              AllOf(HasSubstr("last a: 143\n"), HasSubstr("last b: 143\n"),
                    HasSubstr("stopped 0: 5\n"), HasSubstr("stopped 1: 5\n"),
                    HasSubstr("stopped coordinator: 5\n")));
  EXPECT_THAT(output(),
              AllOf(HasSubstr("worker a left early, after step"),
                    HasSubstr("as all workers left early; its parameters are "
                              "in the checkpoint of round"),
                    Not(HasSubstr("back to the checkpoint")),
                    Not(HasSubstr("counted as dead"))));
}

// Shard 0 and the coordinator stand still, so that no member can leave.
TEST_F(LeavingTest, EveryLogEndsWithTheSignalThatEndsTheProcess) {
  EXPECT_EQ(RunScript(absl::StrCat(kJob, R"(
coordinator; shard 0 a; shard 1 a; worker a 1; worker b 1
settled
kill -STOP $pid_s0 $pid_c
kill $pid_wa; sleep 0.1; kill $pid_wa; wait $pid_wa; echo "worker a: $?"
kill $pid_s1; sleep 0.1; kill $pid_s1
kill -CONT $pid_c; kill -INT $pid_wb $pid_c
wait $pid_wb; echo "worker b: $?"
wait $pid_s1; echo "shard 1: $?"
wait $pid_c; echo "coordinator: $?"
kill -9 $pid_s0
grep -h "ends at once" $dir/workera.1.log
grep -h "ends at once" $dir/workerb.1.log $dir/shard1.a.log $dir/coordinator.log
)")),
            0)
      << output();
  EXPECT_THAT(
      output(),
      AllOf(HasSubstr("worker a: 143\n"), HasSubstr("worker b: 130\n"),
            HasSubstr("shard 1: 143\n"), HasSubstr("coordinator: 130\n")));
  EXPECT_THAT(
      output(),
      AllOf(HasSubstr("INFO [worker a] a second SIGTERM: ends at once\n"),
            HasSubstr("INFO [worker b] SIGINT: ends at once\n"),
            HasSubstr("INFO [shard 1] a second SIGTERM: ends at once\n"),
            HasSubstr("INFO [coordinator] SIGINT: ends at once\n")));
}

TEST_F(LeavingTest, DrainedMembersEndWithoutAnError) {
  EXPECT_EQ(RunScript(absl::StrCat(kJob, R"(
coordinator; shard 0 a; shard 1 a; worker a 1; worker b 1
settled
drain() { $ctl drain "$1" --server=127.0.0.1:$port; echo "drain $1: $?"; }
drain c
drain "shard 1"; wait $pid_s1; echo "shard 1: $?"
drain b; wait $pid_wb; echo "worker b: $?"
drain a; wait $pid_wa; echo "worker a: $?"
)")),
            0)
      << output();
  EXPECT_THAT(
      output(),
      AllOf(HasSubstr("the job has no member \"c\"; its members are"),
            HasSubstr("drain c: 1\n"), HasSubstr("drain shard 1: 0\n"),
            HasSubstr("shard 1 has left the job"), HasSubstr("shard 1: 0\n"),
            HasSubstr("drain b: 0\n"), HasSubstr("worker b: 0\n"),
            HasSubstr("drain a: 0\n"), HasSubstr("worker a: 0\n")));
}

TEST_F(LeavingTest, WorkersOfAReplayLeave) {
  EXPECT_EQ(RunScript(absl::StrCat(kJob, R"(
cat > $dir/model.csv <<'TEXT'
name,kind,m,n,parameters,rows_per_sample
first,vector,1,1024,1024,1
TEXT
echo '{"layers": [{"name": "first", "forward_seconds": 0.005,
  "backward_seconds": 0.005}]}' > $dir/times.json
worker() {
  $worker --coordinator=127.0.0.1:$port --name=$1 --model=$dir/model.csv \
    --replay=$dir/times.json --steps=1000000 --batch=1 --json \
    > $dir/worker$1.$2.log 2>&1 &
  eval pid_w$1=$!
}
coordinator; shard 0 a; shard 1 a; worker a 1; worker b 1
settled
kill $pid_wa; wait $pid_wa; echo "worker a: $?"; tail -n 1 $dir/workera.1.log
$ctl drain b --server=127.0.0.1:$port; wait $pid_wb; echo "worker b: $?"
cat $dir/coordinator.log
)")),
            0)
      << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("worker a: 143\n"),
                              HasSubstr(", because of SIGTERM\n"),
                              HasSubstr("worker b: 0\n"),
                              HasSubstr("worker a left early, after step"),
                              Not(HasSubstr("counted as dead"))));
}

}  // namespace
}  // namespace nereus
