#include "tests/testing/script_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/held_port.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

constexpr char kPrograms[] = R"(
server=server/nereus-server
worker=worker/trainer/nereus-worker
ctl=server/admin/nereusctl
examples=worker/examples
rm -rf $dir
mkdir $dir
trap 'kill $(jobs -p) 2>/dev/null' EXIT

start_server() {
  rm -f $dir/listening
  $server "$@" > $dir/listening 2> $dir/server.log &
  until grep -qs listening $dir/listening; do
    kill -0 $! || { cat $dir/server.log >&2; exit 99; }
    sleep 0.05
  done
  control=$(sed 's/.*control=\([^ ]*\).*/\1/' $dir/listening)
  data=$(sed 's/.*data=//' $dir/listening)
}

await() {
  for i in $(seq 2400); do
    grep -q -- "$1" $2 && return
    sleep 0.05
  done
  echo "$2 never had: $1" >&2
  cat $2 >&2
  exit 98
}
)";

}  // namespace

int ScriptRun::RunScript(const std::string& script) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/script_", getpid());
  const HeldPort port;
  ProgramRun run({"/bin/sh", "-c",
                  absl::StrCat("dir=", folder, "\nport=", port.port(), "\n",
                               kPrograms, script)});
  const int code = run.Finish();
  output_ = run.output() + run.error();
  return code;
}

}  // namespace nereus
