// Two workers that claim one host and cannot reach each other: real processes
// in network namespaces.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/script_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

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
