// Connections that let nothing through. Real servers and clients in one process
// train through a relay, which swallows the bytes of a connection.

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "tests/testing/held_port.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/tcp_relay.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

constexpr absl::Duration kLease = absl::Seconds(3);

// True if an event says that a connection was lost because of its silence.
bool SaysThatNothingArrived(const JobStatus& status) {
  for (const JobStatus::Event& event : status.events) {
    if (event.text.find("lost its connection") != std::string::npos &&
        event.text.find("nothing has arrived for ") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Members reach the server's two ports through a relay each. Heartbeats go on
// when that of the data port swallows.
TEST(SilentLinkTest, ConnectionThatLetsNothingThroughIsMadeAnew) {
  const HeldPort control;
  const HeldPort data;
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 2;
  options.spec.min_workers = 1;
  options.spec.lease_seconds = absl::ToDoubleSeconds(kLease);
  options.shared_memory = false;
  options.address.host = "127.0.0.2";
  options.address.listen = "127.0.0.1";
  options.address.control_port = control.port();
  options.address.data_port = data.port();
  const TcpRelay messages("127.0.0.2", control.port(), control.port());
  TcpRelay relay("127.0.0.2", data.port(), data.port());
  LocalCluster cluster(options);
  std::atomic<bool> stops = false;
  const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
    if (i == 2) {
      EXPECT_TRUE(cluster.AwaitStatus(
          [](const JobStatus& status) { return status.steps.begun > 2; }));
      relay.SwallowOldest();
      const absl::Time from = SteadyNow();
      EXPECT_TRUE(cluster.AwaitStatus(SaysThatNothingArrived));
      EXPECT_LT(SteadyNow() - from, 2 * kLease);
      // The two make another connection, and training goes on.
      EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
        return status.epoch == 2 && status.steps.since_begun < absl::Seconds(1);
      }));
      EXPECT_TRUE(cluster.AwaitStatus([](const JobStatus& status) {
        return status.members.size() == 3 && status.counts.workers_lost == 0;
      }));
      stops = true;
      return absl::OkStatus();
    }
    ToyWorker worker(SmallModel());
    NEREUS_TRY(worker.Connect(cluster.client_options_on(i)));
    while (!stops) NEREUS_TRY(StatusOf(worker.NextStep()));
    return worker.client()->Leave();
  });
  for (const absl::Status& result : results) {
    EXPECT_TRUE(result.ok()) << result;
  }
}

}  // namespace
}  // namespace nereus
