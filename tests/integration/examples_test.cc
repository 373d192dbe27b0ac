// Runs the programs of worker/examples as docs/client.md describes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::Not;

class ExamplesTest : public ScriptRun, public testing::Test {};

TEST_F(ExamplesTest, OwnLoopFitsTheLine) {
  EXPECT_EQ(RunScript(R"(
start_server --servers=1 --workers=2
NEREUS_COORDINATOR=$control $examples/own_loop > $dir/first & first=$!
NEREUS_COORDINATOR=$control $examples/own_loop > $dir/second || exit
wait $first || exit
cat $dir/second
tail -n 1 $dir/first > $dir/a; tail -n 1 $dir/second > $dir/b; cmp $dir/a $dir/b
)"),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("step 800: loss "));
  EXPECT_THAT(output(), HasSubstr("y = 3.00 x + 1.00\n"));
}

TEST_F(ExamplesTest, TheLoopInCFitsTheLineAndSharesTheJobWithCpp) {
  EXPECT_EQ(RunScript(R"(
start_server --servers=1 --workers=2
NEREUS_COORDINATOR=$control $examples/own_loop > $dir/first & first=$!
$examples/c/own_loop $control > $dir/second || exit
wait $first || exit
cat $dir/second
)"),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("step 800: loss "));
  EXPECT_THAT(output(), HasSubstr("y = 3.00 x + 1.00\n"));
}

TEST_F(ExamplesTest, CtrlCEndsTheLoopInCWhileItWaits) {
  EXPECT_EQ(RunScript(R"(
start_server --servers=1 --workers=2
$examples/c/own_loop $control 2> $dir/error & loop=$!
await "listening" $dir/error
kill -INT $loop
wait $loop
code=$?
cat $dir/error
exit $code
)"),
            1)
      << output();
  EXPECT_THAT(output(), HasSubstr("error 4: the job's values have not come"));
}

// None of the loop's calls waits for 100 ms, and its steps take hours.
TEST_F(ExamplesTest, CtrlCEndsTheLoopInCWhileItsCallsReturnQuickly) {
  EXPECT_EQ(RunScript(R"(
start_server --servers=1 --workers=1
mkfifo $dir/lines
$examples/c/own_loop $control 1000000000 > $dir/lines & loop=$!
{
  read line
  kill -INT $loop
  echo "$line"
  cat
} < $dir/lines
wait $loop
)"),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("step 0: loss "));
  EXPECT_THAT(output(), HasSubstr("y = "));
}

// A program that uses another gRPC or Protobuf must not meet that of the
// library.
TEST_F(ExamplesTest, TheLibraryExportsTheFunctionsOfItsHeaderOnly) {
  EXPECT_EQ(RunScript(R"(
nm -D --defined-only worker/c_api/libnereus.so | awk '{print $3}' |
  sed 's/@.*//' | sort > $dir/symbols
grep -v '^nereus_\|^NEREUS_' $dir/symbols && exit 3
sed -n 's/.*\(nereus_[a-z_]*\)(.*/\1/p' worker/c_api/nereus.h | sort -u \
  > $dir/functions
grep '^nereus_' $dir/symbols | diff $dir/functions - || exit 4
wc -l < $dir/functions
)"),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("35\n"));
}

// The checkpoint has the optimizer's velocity. So a job that stops and restarts
// ends with the same result as a job that does not stop.
TEST_F(ExamplesTest, OwnOptimizerGoesOnAfterARestart) {
  EXPECT_EQ(RunScript(R"(
run() {
  start_server --servers=1 --workers=2 --deterministic $1
  NEREUS_COORDINATOR=$control $examples/own_optimizer $2 > $dir/first &
  first=$!
  NEREUS_COORDINATOR=$control $examples/own_optimizer $2 > $dir/second || exit
  wait $first || exit
  cat $dir/first
}
run "" 23
run "--checkpoint-dir=$dir/ck --restore=latest" 9
run "--checkpoint-dir=$dir/ck --restore=latest" 23
)"),
            0)
      << output();
  const std::string whole = "after 23 steps: y = ";
  EXPECT_THAT(output(), HasSubstr("after 9 steps: y = "));
  const size_t first = output().find(whole);
  const size_t second = output().rfind(whole);
  ASSERT_NE(first, second);
  EXPECT_EQ(output().substr(first, output().find('\n', first) - first),
            output().substr(second, output().find('\n', second) - second));
}

TEST_F(ExamplesTest, LoopWithoutOptimizerIsRefusedIfWorkersUpdate) {
  EXPECT_EQ(RunScript("start_server --servers=1 --workers=1 "
                      "--optimizer=worker\n"
                      "NEREUS_COORDINATOR=$control $examples/own_loop"),
            1)
      << output();
  EXPECT_THAT(output(), HasSubstr("--optimizer=server"));
}

TEST_F(ExamplesTest, PushedFactorsTrainTwoLayersWithEachScheme) {
  for (const char* scheme : {"factor", "server", "ring"}) {
    EXPECT_EQ(RunScript(std::string("scheme=") + scheme + R"(
start_server --servers=1 --workers=2 --learning-rate=0.1 --scheme=$scheme
NEREUS_COORDINATOR=$control $examples/two_layers > $dir/first & first=$!
NEREUS_COORDINATOR=$control $examples/two_layers || exit
wait $first
)"),
              0)
        << scheme << output();
    EXPECT_THAT(output(), HasSubstr("step 300: loss 0.0")) << scheme;
    EXPECT_THAT(output(), Not(HasSubstr("step 0: loss 0.0"))) << scheme;
  }
}

}  // namespace
}  // namespace nereus
