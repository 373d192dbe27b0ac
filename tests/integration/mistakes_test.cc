// Answers of the programs to mistakes of users. Each row runs real processes
// and checks the exit code and words of the message: for example the flag, its
// value, or a remedy.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

struct Mistake {
  const char* name;
  // Command line for sh, with $server, $worker and $ctl.
  const char* command;
  int exit_code;                  // Exit code of the command line.
  std::vector<const char*> says;  // Texts that the output must have.
};

std::string NameOf(const testing::TestParamInfo<Mistake>& info) {
  return info.param.name;
}

class MistakeTest : public ScriptRun, public testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, MistakeIsAnsweredWithItsMessage) {
  EXPECT_EQ(RunScript(GetParam().command), GetParam().exit_code) << output();
  for (const char* text : GetParam().says) {
    EXPECT_THAT(output(), HasSubstr(text));
  }
}

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

std::string WithRows(absl::string_view rows) {
  return absl::StrCat("rows='", rows, "'", kTablePrograms);
}

class ModelTableMistakeTest : public ScriptRun, public testing::Test {};

TEST_F(ModelTableMistakeTest, BadTableIsAWrongCommandLine) {
  const struct {
    const char* rows;
    const char* says;
  } kCases[] = {
      {"a,dense,8,8,64,1", "t.csv: line 2, column 2 (kind): "},
      {"a,fc,8,8,64", "t.csv: line 2: \"a,fc,8,8,64\" has fewer than 6"},
      {"a,fc,8,8,64,1,1", "t.csv: line 2: \"a,fc,8,8,64,1,1\" has more than 6"},
      {"a,fc,0,8,64,1", "t.csv: line 2, column 3 (m): \"0\" is not a whole"},
      {"a,fc,8,8,99,1", "t.csv: line 2, column 5 (parameters)"},
      {"", "t.csv: "},
  };
  for (const auto& each : kCases) {
    EXPECT_EQ(RunScript(WithRows(each.rows)), 222) << output();
    EXPECT_THAT(output(), HasSubstr(each.says)) << each.rows;
  }
}

// The replay ends because its other file does not exist.
TEST_F(ModelTableMistakeTest, GoodTableWithAByteOrderMarkIsRead) {
  EXPECT_EQ(RunScript(WithRows("a,fc,8,8,64,1")), 2) << output();
  EXPECT_THAT(output(), HasSubstr("cannot open "));
  EXPECT_THAT(output(), HasSubstr("/no.json: No such file or directory"));
}

INSTANTIATE_TEST_SUITE_P(
    Files, MistakeTest,
    testing::Values(
        Mistake{"NoSuchTableOfAPlan",
                "$ctl plan --model=./no.csv --workers=2",
                2,
                {"cannot open ./no.csv: No such file or directory"}},
        Mistake{"NoSuchTableOfASimulation",
                "$ctl simulate --model=./no.csv --workers=2 --compute=1s",
                2,
                {"cannot open ./no.csv: No such file or directory"}},
        Mistake{"EmptyTable",
                ": > $dir/t.csv; $ctl plan --model=$dir/t.csv --workers=2",
                2,
                {"t.csv: line 1: the text ends without the header name,kind"}},
        Mistake{"NoSuchTableOfAReplay",
                "$worker --coordinator=h:1 --replay=t.json --model=./no.csv",
                2,
                {"cannot open ./no.csv: No such file or directory"}},
        Mistake{"NoSuchModelOfAReplay",
                "$worker --coordinator=h:1 --replay=t.json --model=vgg",
                2,
                {"no model \"vgg\", known are alexnet"}},
        Mistake{"NoSuchTimes",
                "$ctl simulate --model=vgg19 --workers=2 "
                "--compute-trace=no.json",
                2,
                {"cannot open no.json: No such file or directory"}},
        Mistake{"NoSuchRun",
                "$ctl plan --run=no.json",
                2,
                {"cannot open no.json: No such file or directory"}},
        Mistake{"NoSuchJobFile",
                "$server --job=no.conf",
                2,
                {"cannot open no.conf: No such file or directory"}},
        Mistake{"JobFileWithAByteOrderMark",
                "printf '\\357\\273\\277workers = 0\\n' > $dir/j; "
                "$server --job=$dir/j",
                2,
                {"line 1: workers: "}}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Flags, MistakeTest,
    testing::Values(
        Mistake{"UnknownFlag",
                "$worker --wrokers=3",
                2,
                {"unknown flag --wrokers"}},
        Mistake{"Typo",
                "$server --wrokers=3",
                2,
                {"--wrokers", "did you mean --workers?"}},
        Mistake{"NoSuchChoice",
                "$server --scheme=foo",
                2,
                {"--scheme: \"foo\" is not one of auto, server, factor, ring"}},
        Mistake{"ChoiceOfAnotherFlag",
                "$server --optimizer=adam",
                2,
                {"--optimizer: \"adam\" is not one of auto, server, worker",
                 "did you mean --update=adam?"}},
        Mistake{"Backup",
                "$server --backup=2",
                2,
                {"--backup: \"2\" is not one of 0, 1"}},
        Mistake{"LogLevel",
                "$worker --log-level=loud",
                2,
                {"--log-level: \"loud\" is not one of debug"}},
        Mistake{"NotANumber",
                "$server --workers=abc",
                2,
                {"--workers: \"abc\" is not a number from 1 to 65536"}},
        Mistake{"Twice",
                "$server --workers=1 --workers=2",
                2,
                {"--workers is given more than once"}},
        Mistake{"RangeNamesTheFlag",
                "$server --momentum=1.5",
                2,
                {"--momentum: \"1.5\" is not a number from 0 to below 1"}},
        Mistake{"PortNamesTheFlag",
                "$server --control-port=70000",
                2,
                {"--control-port is 70000"}},
        Mistake{"ShardNamesTheFlag",
                "$server --shard=2 --servers=2",
                2,
                {"--shard is 2, must be in [0, 2)"}},
        Mistake{"IdleFlagOfAnOptimizer",
                "$server --beta1=0.8",
                2,
                {"--beta1 does not count with --update=sgd"}},
        Mistake{"IdleFlagOfAQuorum",
                "$server --staleness=2",
                2,
                {"--staleness does not count with --quorum=all"}},
        Mistake{"IdleFlagOfSparsity",
                "$server --block=1024",
                2,
                {"--block does not count without --sparsity"}},
        Mistake{"IdleFlagOfALocalJob",
                "$ctl local --beta1=0.8",
                2,
                {"--beta1 does not count with --update=sgd"}},
        Mistake{"IdleFlagOfASimulation",
                "$ctl simulate --model=vgg19 --workers=2 --compute=1s "
                "--block=1024",
                2,
                {"--block does not count without --sparsity"}},
        Mistake{"IdleFlagOfAPlan",
                "$ctl plan --model=vgg19 --workers=2 --staleness=1",
                2,
                {"--staleness does not count with --quorum=all"}},
        Mistake{"RestoreOfALocalJobWithoutAFolder",
                "$ctl local --restore=latest",
                2,
                {"--restore does not count without --checkpoint-dir"}},
        Mistake{"FlagOfTheCoordinatorAtAWorker",
                "$worker --scheme=ring",
                2,
                {"unknown flag --scheme, which is the coordinator's alone"}},
        Mistake{"SamePortForTwo",
                "$server --control-port=7000 --data-port=7000",
                2,
                {"--control-port and --data-port are both 7000"}},
        Mistake{"TextForANumberInARange",
                "$worker --batch=abc",
                2,
                {"--batch is \"abc\", must be a number from 1 to"}},
        Mistake{"TimesGivenTwice",
                "$ctl simulate --model=vgg19 --workers=2 --compute=1s "
                "--compute-trace=f",
                2,
                {"--compute and --compute-trace are both given"}},
        Mistake{"LeaseNamesTheFlag",
                "$server --lease=-1",
                2,
                {"--lease: \"-1\" is not a number from 3 to"}},
        Mistake{"RestoreWithoutAFolder",
                "$server --restore=latest",
                2,
                {"--checkpoint-dir is not given"}},
        Mistake{"AddressWithoutAPort",
                "$worker --coordinator=127.0.0.1",
                2,
                {"--coordinator is \"127.0.0.1\", must be HOST:PORT"}},
        Mistake{"AddressWithAScheme",
                "$worker --coordinator=http://h:1",
                2,
                {"--coordinator is \"http://h:1\", must be HOST:PORT"}},
        Mistake{"StatusAddress",
                "$ctl status --server=127.0.0.1",
                2,
                {"--server", "must be HOST:PORT"}},
        Mistake{"UpdateFlagsInAJob",
                "$worker --coordinator=h:1 --learning-rate=5",
                2,
                {"--learning-rate does not count in a job"}},
        Mistake{"StandaloneAndCoordinator",
                "$worker --standalone --coordinator=h:1",
                2,
                {"--coordinator does not count with --standalone"}},
        Mistake{"StandaloneOptimizer",
                "$worker --standalone --update=sgd --beta1=0.5",
                2,
                {"--beta1 does not count with --update=sgd"}},
        Mistake{"StepsWithoutReplay",
                "$worker --coordinator=h:1 --steps=3",
                2,
                {"--steps does not count without --replay"}},
        Mistake{"ReplayWithEpochs",
                "$worker --coordinator=h:1 --replay=times.json --epochs=2",
                2,
                {"--epochs does not count with --replay"}},
        Mistake{"ReplayOnNoDevice",
                "$worker --coordinator=h:1 --replay=times.json --device=gpu0",
                2,
                {"--device: \"gpu0\" is neither cpu nor cuda:N"}},
        Mistake{"TraceOfAReplayOnACpu",
                "$worker --coordinator=h:1 --replay=times.json --trace=t.json",
                2,
                {"--trace records the work of a GPU: it needs --device"}},
        Mistake{"SchemeOfAShardWithACoordinator",
                "$server --shard=1 --coordinator=h:1 --scheme=ring",
                2,
                {"--scheme does not count with --coordinator"}},
        Mistake{"MisspeltCommand",
                "$ctl locl",
                2,
                {"unknown command locl; did you mean local?"}},
        Mistake{"StatusWithoutAServer",
                "$ctl status",
                2,
                {"nereusctl: --server is required"}},
        Mistake{"RestoreOfNoRound",
                "$server --checkpoint-dir=$dir/ck --restore=foo",
                2,
                {"--restore is \"foo\", must be latest or a round"}},
        Mistake{"LocalRestoreOfNoRound",
                "$ctl local --checkpoint-dir=$dir/ck --restore=foo",
                2,
                {"--restore is \"foo\", must be latest or a round"}},
        Mistake{"HoldoutOfAllImages",
                "$worker --coordinator=h:1 --holdout=1",
                2,
                {"--holdout is 1, must be > 0 and < 1"}},
        Mistake{
            "LatencyWithoutAUnit",
            "$ctl simulate --model=mlp --workers=2 --latency=20",
            2,
            {"--latency: \"20\" has no unit, such as in 20s, 20ms or 20us"}},
        Mistake{"VariableOfTheShellThatIsNotSet",
                "$ctl local --checkpoint-dir=$no_such_variable --limit=64",
                2,
                {"--checkpoint-dir= has no value", "variable of the shell"}},
        Mistake{"ShareThatIsNoNumber",
                "$ctl local --holdout=nan",
                2,
                {"--holdout is \"nan\", must be a number"}},
        Mistake{"ShareInAVariableThatIsNoNumber",
                "NEREUS_HOLDOUT=nan $ctl local",
                2,
                {"NEREUS_HOLDOUT is \"nan\", must be a number"}},
        Mistake{"FlagInPlaceOfAValue",
                "$worker --coordinator --batch=32",
                2,
                {"--coordinator needs a value before --batch=32"}},
        Mistake{"ComputeWithoutAUnit",
                "$ctl simulate --model=mlp --workers=2 --compute=200",
                2,
                {"--compute: \"200\" has no unit, such as in 200s, 200ms"}},
        Mistake{"CheckpointsOfAFolderWithoutAny",
                "$ctl checkpoints $dir",
                1,
                {"no checkpoints in", "nereus-folder-id"}},
        Mistake{"CheckpointsOfAFile",
                "$ctl checkpoints /etc/passwd",
                1,
                {"/etc/passwd is not a folder"}},
        Mistake{"ExportOfNothing",
                "$ctl export $dir --out=${dir}-m",
                1,
                {"there is no complete checkpoint in"}},
        Mistake{"ExportIntoTheCheckpoints",
                "$ctl export $dir --out=$dir/round-1/manifest.json",
                2,
                {"--out is", "must be outside the folder"}},
        Mistake{"ExportOfAMissingRound",
                "$ctl export $dir --round=7 --out=${dir}-m",
                1,
                {"there is no complete checkpoint of round 7 in",
                 "nereusctl checkpoints"}}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Variables, MistakeTest,
    testing::Values(
        Mistake{"NoNumber",
                "NEREUS_WORKERS=abc $server",
                2,
                {"the variable NEREUS_WORKERS: \"abc\" is not a number"}},
        Mistake{"Unknown",
                "NEREUS_WROKERS=3 $server --shard=3",
                2,
                {"the variable NEREUS_WROKERS has no meaning",
                 "did you mean NEREUS_WORKERS?"}},
        Mistake{"Empty",
                "NEREUS_MOMENTUM= $server --shard=3",
                2,
                {"the variable NEREUS_MOMENTUM is empty"}}),
    NameOf);

// Starts a server for two workers, and the first worker. The second worker,
// which makes the mistake, follows.
constexpr char kTwoWorkers[] = R"(
start_server --shard=0 --servers=1 --workers=2
$worker --coordinator=$control --name=first --limit=200 2> $dir/first.log &
until grep -q 'waits for 1 more worker' $dir/first.log; do sleep 0.05; done
)";

class SecondWorkerTest : public ScriptRun,
                         public testing::TestWithParam<Mistake> {};

TEST_P(SecondWorkerTest, SecondWorkerIsRefusedWithTheReason) {
  EXPECT_EQ(
      RunScript(absl::StrCat(kTwoWorkers, "$worker --coordinator=$control ",
                             GetParam().command)),
      GetParam().exit_code)
      << output();
  for (const char* text : GetParam().says) {
    EXPECT_THAT(output(), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SecondWorkerTest,
    testing::Values(
        Mistake{"Model",
                "--name=b --limit=200 --model=mlp",
                4,
                {"--model differs: worker b has mlp, worker first has cnn"}},
        Mistake{"Batch",
                "--name=b --limit=200 --batch=64",
                4,
                {"--batch differs: worker b has 64, worker first has 32"}},
        Mistake{"Epochs",
                "--name=b --limit=200 --epochs=3",
                4,
                {"--epochs differs: worker b has 3, worker first has 8"}},
        Mistake{"Seed",
                "--name=b --limit=200 --seed=7",
                4,
                {"--seed differs: worker b has 7, worker first has 1"}},
        Mistake{"Limit",
                "--name=b --limit=300",
                4,
                {"--limit differs: worker b has 300, worker first has 200"}},
        Mistake{"Job",
                "--name=b --limit=200 --job-name=other",
                4,
                {"asks for job \"other\", this coordinator serves job"}},
        Mistake{"Name",
                "--name=first --limit=200",
                75,
                {"first is the name of a worker at", "--name gives each"}}),
    NameOf);

class FolderTest : public ScriptRun, public testing::Test {
 protected:
  // Runs a script that starts a job with --epochs=$epochs and harms it. Returns
  // the script's exit code. If that is 0, the job has ended before the harm,
  // and the script runs again with four times the epochs.
  int RunUntilHarmed(const std::string& script) {
    int code = 0;
    for (int epochs = 50; code == 0 && epochs <= 3200; epochs *= 4) {
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
  $ctl local --workers=1 --servers=1 --model=mlp --limit=320 --delay=0.05 \
    --checkpoint-every=10 --checkpoint-dir=$dir/ck "$@"
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

TEST_F(FolderTest, CoordinatorThatCannotSaveEndsWithTheReason) {
  EXPECT_EQ(RunScript(absl::StrCat(kFullDisk,
                                   "start_on_full_disk\n"
                                   "train 1000000 2> $dir/worker.log &\n"
                                   "fill_disk\n"
                                   "train 1000000 2> $dir/second.log &\n"
                                   "end_as_server")),
            75)
      << output();
  EXPECT_THAT(output(), HasSubstr("the job's state could not be saved for 3"));
}

// With --coordinate-only the process has no shard. Only its coordinator waits
// for the end of the job.
TEST_F(FolderTest, UnsavedEndOfTheJobIsAFailure) {
  EXPECT_EQ(RunUntilHarmed(absl::StrCat(
                kFullDisk,
                "start_on_full_disk --coordinate-only\n"
                "$server --coordinator=$control 2> $dir/shard.log &\n"
                "train $epochs 2> $dir/worker.log &\n"
                "fill_disk\n"
                "end_as_server")),
            75)
      << output();
  EXPECT_THAT(output(), HasSubstr("the job's state could not be saved for 3"));
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

}  // namespace
}  // namespace nereus
