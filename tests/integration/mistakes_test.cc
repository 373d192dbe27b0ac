// Answers of the programs to mistakes of users, by real processes: the exit
// code, and words of the message, for example the flag, its value, or a remedy.
// Rows of a table are checks that a program makes of its own. Unit tests have
// those that programs share: flags_test, job_spec_test, model_table_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A command line of the shell, with $server, $worker and $ctl, and its answer.
struct Mistake {
  const char* name;
  const char* command;
  const char* says;
  int exit_code = 2;
};

class MistakeTest : public ScriptRun, public testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, MistakeIsAnsweredWithItsMessage) {
  EXPECT_EQ(RunScript(GetParam().command), GetParam().exit_code) << output();
  EXPECT_THAT(output(), HasSubstr(GetParam().says));
}

const Mistake kMistakes[] = {
    // The server.
    {"Typo", "$server --wrokers=3",
     "unknown flag --wrokers; did you mean --workers?"},
    {"JobFile", "printf 'workers = 0\n' > $dir/j; $server --job=$dir/j",
     "line 1: workers: "},
    {"IdleFlagOfAServer", "$server --beta1=0.8",
     "--beta1 does not count with --update=sgd"},
    {"SchemeOfAShardWithACoordinator",
     "$server --shard=1 --coordinator=h:1 --scheme=ring",
     "--scheme does not count with --coordinator"},
    {"Port", "$server --control-port=70000", "--control-port is 70000"},
    {"SamePortForTwo", "$server --control-port=7000 --data-port=7000",
     "--control-port and --data-port are both 7000"},
    {"Shard", "$server --shard=2 --servers=2",
     "--shard is 2, must be in [0, 2)"},
    {"Lease", "$server --lease=-1",
     "--lease: \"-1\" is not a number from 3 to"},
    {"RestoreWithoutAFolder", "$server --restore=latest",
     "--checkpoint-dir is not given"},
    {"RestoreOfNoRound", "$server --checkpoint-dir=$dir/ck --restore=foo",
     "--restore is \"foo\", must be latest or a round"},
    // The worker.
    {"FlagOfTheCoordinator", "$worker --scheme=ring",
     "unknown flag --scheme, which is the coordinator's alone"},
    {"LogLevel", "$worker --log-level=loud",
     "--log-level: \"loud\" is not one of debug"},
    {"FlagInPlaceOfAValue", "$worker --coordinator --batch=32",
     "--coordinator needs a value before --batch=32"},
    {"AddressWithoutAPort", "$worker --coordinator=127.0.0.1",
     "--coordinator is \"127.0.0.1\", must be HOST:PORT"},
    {"AddressWithAScheme", "$worker --coordinator=http://h:1",
     "--coordinator is \"http://h:1\", must be HOST:PORT"},
    {"UpdateFlagsInAJob", "$worker --coordinator=h:1 --learning-rate=5",
     "--learning-rate does not count in a job"},
    {"StandaloneAndCoordinator", "$worker --standalone --coordinator=h:1",
     "--coordinator does not count with --standalone"},
    {"StandaloneOptimizer", "$worker --standalone --update=sgd --beta1=0.5",
     "--beta1 does not count with --update=sgd"},
    {"StepsWithoutReplay", "$worker --coordinator=h:1 --steps=3",
     "--steps does not count without --replay"},
    {"HoldoutOfAllImages", "$worker --coordinator=h:1 --holdout=1",
     "--holdout is 1, must be > 0 and < 1"},
    {"FolderOfADeviceThatIsRelative", "$worker --coordinator=h:1 --share=gpu0",
     "is \"gpu0\", must be an absolute path"},
    {"FolderOfADeviceThatIsOptional",
     "$worker --coordinator=127.0.0.1:1 --connect-timeout=0.1 --share=gpu0 "
     "--share-optional=on",
     "trains without turns at a shared device: ", 75},
    // nereusctl.
    {"MisspeltCommand", "$ctl locl",
     "unknown command locl; did you mean local?"},
    {"StatusWithoutAServer", "$ctl status", "nereusctl: --server is required"},
    {"StatusAddress", "$ctl status --server=127.0.0.1",
     "--server: it is \"127.0.0.1\", must be HOST:PORT"},
    {"IdleFlagOfALocalJob", "$ctl local --beta1=0.8",
     "--beta1 does not count with --update=sgd"},
    {"RestoreOfALocalJobWithoutAFolder", "$ctl local --restore=latest",
     "--restore does not count without --checkpoint-dir"},
    {"LocalRestoreOfNoRound",
     "$ctl local --checkpoint-dir=$dir/ck --restore=foo",
     "--restore is \"foo\", must be latest or a round"},
    {"ShareThatIsNoNumber", "$ctl local --holdout=nan",
     "--holdout is \"nan\", must be a number"},
    {"VariableOfTheShellThatIsNotSet",
     "$ctl local --checkpoint-dir=$no_such_variable --limit=64",
     "--checkpoint-dir= has no value: is a variable of the shell not set?"},
    {"IdleFlagOfASimulation",
     "$ctl simulate --model=vgg19 --workers=2 --compute=1s --block=1024",
     "--block does not count without --sparsity"},
    {"TimesGivenTwice",
     "$ctl simulate --model=vgg19 --workers=2 --compute=1s --compute-trace=f",
     "--compute and --compute-trace are both given"},
    {"IdleFlagOfAPlan", "$ctl plan --model=vgg19 --workers=2 --staleness=1",
     "--staleness does not count with --quorum=all"},
    {"NoSuchRun", "$ctl plan --run=no.json",
     "cannot open no.json: No such file or directory"},
    {"CheckpointsOfAFolderWithoutAny", "$ctl checkpoints $dir",
     "no server has had it as its --checkpoint-dir: it has no file "
     "nereus-folder-id",
     1},
    {"CheckpointsOfAFile", "$ctl checkpoints /etc/passwd",
     "/etc/passwd is not a folder", 1},
    {"ExportOfNothing", "$ctl export $dir --out=${dir}-m",
     "there is no complete checkpoint in", 1},
    {"ExportOfAMissingRound", "$ctl export $dir --round=7 --out=${dir}-m",
     "there is no complete checkpoint of round 7 in", 1},
    {"ExportIntoTheCheckpoints",
     "$ctl export $dir --out=$dir/round-1/manifest.json",
     "must be outside the folder"},
};

INSTANTIATE_TEST_SUITE_P(All, MistakeTest, testing::ValuesIn(kMistakes),
                         [](const auto& info) { return info.param.name; });

// Runs `plan`, `simulate` and a replay with the table of layers whose lines
// after the header are in $rows. The table begins with a byte-order mark, as
// spreadsheets write it. A replay would wait for its job if it read the table.
constexpr char kTablePrograms[] = R"(
printf '\357\273\277name,kind,m,n,parameters,rows_per_sample\r\n%s' "$rows" \
  > $dir/t.csv
$ctl plan --model=$dir/t.csv --workers=2; plan=$?
$ctl simulate --model=$dir/t.csv --workers=2 --compute=1s; simulate=$?
$worker --coordinator=127.0.0.1:1 --replay=$dir/no.json --model=$dir/t.csv
exit $((plan * 100 + simulate * 10 + $?)))";

class ModelTableMistakeTest : public ScriptRun, public testing::Test {};

TEST_F(ModelTableMistakeTest, BadTableIsAWrongCommandLine) {
  EXPECT_EQ(RunScript(absl::StrCat("rows=a,fc,8,8,99,1", kTablePrograms)), 222);
  EXPECT_THAT(output(), HasSubstr("t.csv: line 2, column 5 (parameters)"));
}

// The replay ends because its other file does not exist.
TEST_F(ModelTableMistakeTest, GoodTableWithAByteOrderMarkIsRead) {
  EXPECT_EQ(RunScript(absl::StrCat("rows=a,fc,8,8,64,1", kTablePrograms)), 2);
  EXPECT_THAT(output(), HasSubstr("cannot open "));
  EXPECT_THAT(output(), HasSubstr("/no.json: No such file or directory"));
}

class SecondWorkerTest : public ScriptRun, public testing::Test {};

// The first worker of two waits while others make mistakes, one after the
// other. Each is refused with the reason.
TEST_F(SecondWorkerTest, SecondWorkerIsRefusedWithTheReason) {
  EXPECT_EQ(RunScript(R"(
start_server --shard=0 --servers=1 --workers=2
$worker --coordinator=$control --name=first --limit=200 2> $dir/first.log &
await 'waits for 1 more worker' $dir/first.log
for flags in --model=mlp --batch=64 --epochs=3 --seed=7 --limit=300 \
    --job-name=other --name=first; do
  NEREUS_NAME=b NEREUS_LIMIT=200 $worker --coordinator=$control $flags
  echo "$flags: $?"
done
)"),
            0)
      << output();
  for (const char* text :
       {"--model differs: worker b has mlp, worker first has cnn",
        "--batch differs: worker b has 64, worker first has 32",
        "--epochs differs: worker b has 3, worker first has 8",
        "--seed differs: worker b has 7, worker first has 1",
        "--limit differs: worker b has 300, worker first has 200",
        "asks for job \"other\", this coordinator serves job",
        "first is the name of a worker at", "--name gives each",
        "--model=mlp: 4\n", "--batch=64: 4\n", "--epochs=3: 4\n",
        "--seed=7: 4\n", "--limit=300: 4\n", "--job-name=other: 4\n",
        "--name=first: 75\n"}) {
    EXPECT_THAT(output(), HasSubstr(text));
  }
}

class FolderTest : public ScriptRun, public testing::Test {
 protected:
  // Runs a script that starts a job with --epochs=$epochs and harms it. Returns
  // the script's exit code. If that is 0, the job has ended before the harm,
  // and the script runs again with four times the epochs.
  int RunUntilHarmed(const std::string& script) {
    int code = 0;
    for (int epochs = 8; code == 0 && epochs <= 2048; epochs *= 4) {
      code = RunScript(absl::StrCat("epochs=", epochs, "\n", script));
    }
    return code;
  }
};

// A flag takes precedence over a variable in each process of the job, not only
// in nereusctl.
TEST_F(FolderTest, OverriddenVariableHasNoEffectInAnyProcess) {
  EXPECT_EQ(RunScript("NEREUS_WORKERS=1 NEREUS_JOB_NAME=other "
                      "NEREUS_SCHEME=ring $ctl local --workers=2 --servers=1 "
                      "--job-name=mine --scheme=server --model=mlp --limit=200 "
                      "--epochs=1 --json=$dir/run.json && "
                      "cat $dir/run.json"),
            0)
      << output();
  EXPECT_THAT(output(), AllOf(HasSubstr("\"job_name\": \"mine\""),
                              HasSubstr("\"scheme\": \"server\"")));
}

// An export must not replace a device or a pipe.
TEST_F(FolderTest, ExportReplacesNoPipe) {
  EXPECT_EQ(RunScript("$ctl local --workers=1 --servers=1 --model=mlp "
                      "--limit=200 --epochs=1 --checkpoint-dir=$dir/model "
                      "> $dir/log 2>&1\n"
                      "mkfifo $dir/pipe\n"
                      "$ctl export $dir/model --out=$dir/pipe"),
            2)
      << output();
  EXPECT_THAT(output(), HasSubstr("pipe, which exists and is not a regular"));
}

// A checkpoint whose manifest was cut off is passed over by --restore=latest
// alone, with a warning. The job that goes on from an earlier one writes the
// round anew.
// Steps take so long that a busy disk keeps up with the checkpoints.
TEST_F(FolderTest, DamagedNewestCheckpointIsPassedOverWithAWarning) {
  EXPECT_EQ(RunScript(R"(
train() {
  $ctl local --workers=1 --servers=1 --model=mlp --limit=320 \
    --delay-in-turn=0.05 --checkpoint-every=10 --checkpoint-dir=$dir/ck "$@"
}
train --epochs=2 > $dir/log 2>&1
truncate --size=300 $dir/ck/round-000000000015/manifest.json
$ctl export $dir/ck --out=$dir/model; echo "export: $?"
$ctl checkpoints $dir/ck > $dir/list; echo "checkpoints: $?"
train --epochs=3 --restore=15; echo "named: $?"
train --epochs=3 --restore=latest > $dir/out; echo "latest: $?"
$ctl export $dir/ck --out=$dir/model
ls $dir/ck)"),
            0)
      << output();
  EXPECT_THAT(
      output(),
      AllOf(HasSubstr("--round=ROUND takes another one: 9, 0"),
            HasSubstr("export: 1\n"), HasSubstr("checkpoints: 1\n"),
            HasSubstr("--restore=ROUND takes another one: 9, 0"),
            HasSubstr("named: 1\n"),
            HasSubstr("the checkpoint of round 15 is damaged: "),
            HasSubstr("that of round 9, which costs 6 steps"),
            HasSubstr("latest: 0\n"),
            HasSubstr("made the checkpoint of round 9: --epochs is 3, was 2"),
            HasSubstr("as of round 23"), HasSubstr("round-000000000023"),
            HasSubstr("set-aside-round-000000000015")));
}

// With two folders, no checkpoint would be complete in either of them.
TEST_F(FolderTest, ServersWithTwoFoldersAreRefused) {
  EXPECT_EQ(RunScript("start_server --servers=2 --workers=1 "
                      "--checkpoint-dir=$dir/one\n"
                      "$server --shard=1 --coordinator=$control "
                      "--checkpoint-dir=$dir/two"),
            4)
      << output();
  EXPECT_THAT(output(), HasSubstr("--checkpoint-dir differs: "));
}

// The two jobs would remove each other's checkpoints.
TEST_F(FolderTest, SecondJobInAFolderIsRefused) {
  EXPECT_EQ(RunScript("start_server --checkpoint-dir=$dir/ck\n"
                      "$server --checkpoint-dir=$dir/ck --restore=latest"),
            4)
      << output();
  EXPECT_THAT(output(), HasSubstr("the coordinator of another job has"));
}

TEST_F(FolderTest, SecondCoordinatorOfAStateIsRefused) {
  EXPECT_EQ(RunScript("start_server --state=$dir/state\n"
                      "$server --state=$dir/state"),
            75)
      << output();
  EXPECT_THAT(output(), HasSubstr("is open in another process"));
}

// A file replaces the checkpoint folder, so the model is lost. The coordinator
// says so and exits with a failure. `mv -T` is one system call, so the
// coordinator cannot make the folder anew before the file is there.
TEST_F(FolderTest, RunWithoutItsFolderEndsWithAFailure) {
  EXPECT_EQ(
      RunUntilHarmed("mkdir $dir/kept && ln -s $dir/kept $dir/gone\n"
                     "start_server --workers=1 --checkpoint-dir=$dir/gone "
                     "--checkpoint-every=10; server=$!\n"
                     "$worker --coordinator=$control --limit=400 "
                     "--epochs=$epochs 2> $dir/worker.log & worker=$!\n"
                     "await 'training cnn' $dir/worker.log\n"
                     "touch $dir/file && mv -T $dir/file $dir/gone\n"
                     "wait $server; code=$?; cat $dir/server.log >&2\n"
                     "wait $worker; exit $code"),
      6)
      << output();
  EXPECT_THAT(output(), HasSubstr("NOT SAVED"));
}

// A coordinator saves its state before it sends messages that depend on it. If
// it cannot save, it must end. start_on_full_disk starts a server with the
// flags in $1. fill_disk waits for the first worker; then all writes of the
// server to files fail. end_as_server ends the script with the server's exit
// code.
constexpr char kFullDisk[] = R"(
start_on_full_disk() {
  mkfifo $dir/errors
  cat $dir/errors > $dir/server.log & log=$!
  sh -c 'trap "" XFSZ; exec "$@"' sh $server --workers=1 --max-workers=2 \
    --lease=3 --state=$dir/state $1 > $dir/listening 2> $dir/errors & pid=$!
  await listening $dir/listening
  control=$(sed 's/.*control=\([^ ]*\).*/\1/' $dir/listening)
}
train() { $worker --coordinator=$control --limit=200 --epochs=$1; }
fill_disk() {
  await 'training cnn' $dir/worker.log
  prlimit --pid=$pid --fsize=0
}
end_as_server() {
  wait $pid; code=$?
  wait $log; cat $dir/server.log >&2
  exit $code
}
)";

// Two jobs at the same time, because they mostly wait: the disk is full in the
// middle of the one, and when the other ends. With --coordinate-only the
// process has no shard. Only its coordinator waits for the end of the job.
TEST_F(FolderTest, CoordinatorThatCannotSaveEndsWithTheReason) {
  EXPECT_EQ(RunUntilHarmed(absl::StrCat(kFullDisk, R"(
enter() { dir=$dir/$1; mkdir $dir; }
(
  enter middle
  start_on_full_disk
  train 1000000 2> $dir/worker.log &
  fill_disk
  train 1000000 2> $dir/second.log &
  end_as_server
) & middle=$!
(
  enter end
  start_on_full_disk --coordinate-only
  $server --coordinator=$control 2> $dir/shard.log &
  train $epochs 2> $dir/worker.log &
  fill_disk
  end_as_server
) & end=$!
wait $middle; echo "middle: $?"
wait $end)")),
            75)
      << output();
  EXPECT_THAT(output(), HasSubstr("middle: 75\n"));
  const std::string why = "the job's state could not be saved for 3";
  EXPECT_THAT(output(), HasSubstr(why));
  EXPECT_NE(output().find(why), output().rfind(why)) << output();
}

class WrongAddressTest : public ScriptRun, public testing::Test {};

TEST_F(WrongAddressTest, StatusOfADataPortIsExplained) {
  EXPECT_EQ(RunScript("start_server --shard=0 --servers=1 --workers=1\n"
                      "$ctl status --server=$data --timeout=60; code=$?\n"
                      "await 'a gRPC client' $dir/server.log\n"
                      "cat $dir/server.log >&2; exit $code"),
            1)
      << output();
  EXPECT_THAT(output(),
              HasSubstr("is not a control port; is it a --data-port"));
  EXPECT_THAT(output(), HasSubstr("a gRPC client has connected to this data "
                                  "port"));
}

TEST_F(WrongAddressTest, TakenPortIsNamedWithTheReason) {
  EXPECT_EQ(RunScript("start_server --shard=0 --servers=1 --workers=1\n"
                      "$server --shard=0 --servers=1 --workers=1 "
                      "--control-port=${control##*:}"),
            75)
      << output();
  EXPECT_THAT(output(), HasSubstr("cannot listen at 127.0.0.1:"));
  EXPECT_THAT(output(), HasSubstr("Address already in use"));
}

// More clients connect than the server has descriptors. When they have closed
// their connections, the server answers again.
TEST_F(WrongAddressTest, ControlPortAnswersAfterALackOfDescriptors) {
  EXPECT_EQ(
      RunScript("ulimit -n 128\n"
                "start_server --shard=0 --servers=1 --workers=1\n"
                "port=${control##*:} log=$dir/server.log python3 - <<'END'\n"
                "import os, socket, time\n"
                "port = int(os.environ['port'])\n"
                "kept = []\n"
                "for _ in range(100):\n"
                "  kept.append(socket.create_connection(('127.0.0.1', port)))\n"
                "pid = os.fork()\n"
                "if pid == 0:\n"
                "  more = [socket.create_connection(('127.0.0.1', port))\n"
                "          for _ in range(20)]\n"
                "  end = time.monotonic() + 120\n"
                "  while time.monotonic() < end:\n"
                "    if 'are turned away' in open(os.environ['log']).read():\n"
                "      break\n"
                "    time.sleep(0.05)\n"
                "  os._exit(0)\n"
                "os.waitpid(pid, 0)\n"
                "END\n"
                "cat $dir/server.log >&2\n"
                "$ctl status --server=$control --timeout=60"),
      0)
      << output();
  EXPECT_THAT(output(), HasSubstr("control connections are turned away"));
  EXPECT_THAT(output(), HasSubstr("waits for 1 more worker (1 needed)"));
}

// A coordinator that restarts without its state must refuse the members of the
// old job. Otherwise it would train from the beginning.
TEST_F(WrongAddressTest, CoordinatorWithoutItsStateRefusesOldMembers) {
  EXPECT_EQ(
      RunScript("start_server --shard=0 --servers=1 --workers=1; first=$!\n"
                "port=${control##*:}\n"
                "$worker --coordinator=$control --limit=200 --epochs=1000000 "
                "2> $dir/worker.log & worker=$!\n"
                "until grep -q 'step ' $dir/worker.log; do sleep 0.05; done\n"
                "kill -9 $first; wait $first 2>/dev/null\n"
                "start_server --shard=0 --servers=1 --workers=1 "
                "--control-port=$port\n"
                "wait $worker; code=$?; tail -n 2 $dir/worker.log >&2\n"
                "exit $code"),
      5)
      << output();
  EXPECT_THAT(output(), HasSubstr("does not know the job"));
  EXPECT_THAT(output(), HasSubstr("--state=FILE"));
}

// Two workers that claim one host and cannot reach each other.

class SplitHostsTest : public ScriptRun, public testing::Test {};

// The server has a link to each worker and passes no packets on. Each worker
// knows that there is no way to the other one.
constexpr char kNamespaces[] = R"(
server_ns=nereus-$$-server
worker_ns=nereus-$$-worker
remove() {
  for n in $server_ns $worker_ns-1 $worker_ns-2; do ip netns del $n; done
} 2> /dev/null
ip netns add $server_ns 2> /dev/null || exit 77
ip -n $server_ns address add 10.77.9.9/32 dev lo
ip -n $server_ns link set lo up
for i in 1 2; do
  ip netns add $worker_ns-$i || exit 70
  ip -n $server_ns link add link-$i type veth peer name eth0 \
    netns $worker_ns-$i || exit 71
  ip -n $server_ns address add 10.77.$i.1/24 dev link-$i
  ip -n $server_ns link set link-$i up
  ip -n $worker_ns-$i address add 10.77.$i.2/24 dev eth0
  ip -n $worker_ns-$i link set eth0 up
  ip -n $worker_ns-$i link set lo up
  ip -n $worker_ns-$i route add 10.77.9.9 via 10.77.$i.1
  ip -n $worker_ns-$i route add unreachable 10.77.0.0/16
done
)";

TEST_F(SplitHostsTest, WorkersThatClaimOneHostAndCannotConnectAreTwoHosts) {
  const int code = RunScript(absl::StrCat(kNamespaces, R"(
ip netns exec $server_ns $server --servers=1 --workers=2 --host=10.77.9.9 \
  --control-port=7000 --data-port=7001 --node=rack --scheme=server \
  > $dir/server.log 2>&1 & server_pid=$!
await "waits for" $dir/server.log
for i in 1 2; do
  ip netns exec $worker_ns-$i env NEREUS_COORDINATOR=10.77.9.9:7000 \
    NEREUS_HOST=10.77.$i.2 NEREUS_NODE=rack NEREUS_NAME=w$i \
    $examples/own_loop > $dir/w$i 2>&1 & eval worker_$i=$!
done
wait $worker_1; first=$?
wait $worker_2; second=$?
wait $server_pid; served=$?
cat $dir/w1 $dir/w2 $dir/server.log
remove
exit $((first + second + served))
)"));
  if (code == 77) {
    GTEST_SKIP() << "this system makes no network namespaces";
  }
  EXPECT_EQ(code, 0) << output();
  EXPECT_THAT(output(), HasSubstr("y = 3.00 x + 1.00\n"));
  EXPECT_THAT(output(), HasSubstr(" could not connect, and are two hosts"));
  const std::string why =
      "cannot connect, although both run on one machine and say --node=rack";
  EXPECT_NE(output().find(why), std::string::npos) << output();
  EXPECT_EQ(output().find(why), output().rfind(why)) << output();
}

}  // namespace
}  // namespace nereus
