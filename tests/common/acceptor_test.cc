// The acceptor of control connections, on real sockets of loopback: each
// connection reaches the receiver once. AcceptorShortageTest runs the acceptor
// in a process without free descriptors.

#include "common/rpc/acceptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/socket.h"
#include "common/base/status.h"
#include "tests/testing/redirected_log.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Upper bound of each wait. Only a broken acceptor makes a test wait so long.
constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kLongMs = 60'000;

constexpr char kHost[] = "127.0.0.1";

// Collects the connections that an acceptor hands on.
class Arrivals {
 public:
  void Add(Descriptor socket) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    sockets_.push_back(std::move(socket));
  }
  // Waits for the next connection; not valid() if none comes in time.
  Descriptor Next() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    mu_.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                             mu_) { return !sockets_.empty(); },
                         kLong);
    if (sockets_.empty()) return Descriptor();
    Descriptor next = std::move(sockets_.front());
    sockets_.erase(sockets_.begin());
    return next;
  }
  size_t count() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return sockets_.size();
  }

 private:
  mutable Mutex mu_;
  std::vector<Descriptor> sockets_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<Acceptor> StartAcceptor(Arrivals& arrivals) {
  absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Start(
      kHost, /*port=*/0,
      [&arrivals](Descriptor socket) { arrivals.Add(std::move(socket)); });
  EXPECT_TRUE(acceptor.ok()) << acceptor.status();
  return acceptor.ok() ? *std::move(acceptor) : nullptr;
}

// Makes a blocking socket that is not connected yet.
Descriptor MakeSocket() {
  return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// Connects `socket`; returns errno, or 0 if the kernel has queued the
// connection. Opens no file.
int ConnectTo(int port, const Descriptor& socket) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  return connect(socket.get(), name, sizeof(address)) == 0 ? 0 : errno;
}

// Returns the next input from the peer: a byte, "the end", or "nothing" if
// neither comes in time.
std::string NextFrom(const Descriptor& socket) {
  pollfd watched = {socket.get(), POLLIN, 0};
  if (poll(&watched, 1, kLongMs) != 1) return "nothing";
  char byte = 0;
  return read(socket.get(), &byte, 1) == 1 ? std::string(1, byte) : "the end";
}

void ExpectConnected(const Descriptor& client, const Descriptor& accepted) {
  ASSERT_TRUE(accepted.valid());
  ASSERT_EQ(write(accepted.get(), "x", 1), 1);
  EXPECT_EQ(NextFrom(client), "x");
}

TEST(AcceptorTest, ReceiverGetsEachConnectionOnce) {
  Arrivals arrivals;
  const auto acceptor = StartAcceptor(arrivals);
  ASSERT_NE(acceptor, nullptr);
  EXPECT_GT(acceptor->port(), 0);
  for (int i = 0; i < 5; ++i) {
    const Descriptor client = MakeSocket();
    ASSERT_EQ(ConnectTo(acceptor->port(), client), 0);
    ExpectConnected(client, arrivals.Next());
  }
  EXPECT_EQ(arrivals.count(), 0u);
}

TEST(AcceptorTest, TakenPortIsRefusedWithAddressAndReason) {
  Arrivals arrivals;
  const auto acceptor = StartAcceptor(arrivals);
  ASSERT_NE(acceptor, nullptr);
  const absl::Status status =
      Acceptor::Start(kHost, acceptor->port(), [](Descriptor) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr(absl::StrCat("127.0.0.1:", acceptor->port())),
                     HasSubstr(std::strerror(EADDRINUSE))));
}

TEST(AcceptorTest, NothingListensAfterTheAcceptorEnds) {
  Arrivals arrivals;
  auto acceptor = StartAcceptor(arrivals);
  ASSERT_NE(acceptor, nullptr);
  const int port = acceptor->port();
  acceptor.reset();
  EXPECT_EQ(ConnectTo(port, MakeSocket()), ECONNREFUSED);
  EXPECT_EQ(arrivals.count(), 0u);
}

// The receiver owns an accepted connection, so the acceptor must not close it.
TEST(AcceptorTest, ConnectionsOutliveTheAcceptor) {
  Arrivals arrivals;
  auto acceptor = StartAcceptor(arrivals);
  ASSERT_NE(acceptor, nullptr);
  const Descriptor client = MakeSocket();
  ASSERT_EQ(ConnectTo(acceptor->port(), client), 0);
  const Descriptor accepted = arrivals.Next();
  acceptor.reset();
  ExpectConnected(client, accepted);
}

// A process with a low descriptor limit. Tests take descriptors to create a
// shortage.
class AcceptorShortageTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few = {kLimit, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    acceptor_ = StartAcceptor(arrivals_);
    ASSERT_NE(acceptor_, nullptr);
  }
  void TearDown() override {
    acceptor_.reset();
    taken_.clear();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }

  // Takes all descriptors below `first_free`.
  void TakeBelow(int first_free) {
    for (;;) {
      Descriptor next(open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!next.valid() || next.get() >= first_free) return;
      taken_.push_back(std::move(next));
    }
  }
  void TakeAll() { TakeBelow(kLimit); }
  void GiveBack() { taken_.clear(); }

  static constexpr int kLimit = 96;
  static constexpr char kComplaint[] =
      "control connections are turned away: all but 32 of this process's 96 "
      "file descriptors are in use (ulimit -n)";

  rlimit before_ = {};
  std::vector<Descriptor> taken_;
  Arrivals arrivals_;
  RedirectedLog log_{MakePipe()};
  std::unique_ptr<Acceptor> acceptor_;
};

// The kernel queues the connection while the process has no descriptor.
TEST_F(AcceptorShortageTest, ConnectionIsAcceptedAfterTheShortage) {
  const Descriptor client = MakeSocket();
  TakeAll();
  ASSERT_EQ(ConnectTo(acceptor_->port(), client), 0);
  ASSERT_TRUE(log_.Await(kComplaint));
  EXPECT_EQ(arrivals_.count(), 0u);

  GiveBack();
  ExpectConnected(client, arrivals_.Next());
  // After the shortage, the acceptor accepts later connections too.
  const Descriptor later = MakeSocket();
  ASSERT_EQ(ConnectTo(acceptor_->port(), later), 0);
  ExpectConnected(later, arrivals_.Next());
}

TEST_F(AcceptorShortageTest, ShortageIsLoggedOnceUntilItEnds) {
  for (int shortage = 1; shortage <= 2; ++shortage) {
    TakeBelow(kLimit - Acceptor::kReserve);
    for (int connection = 0; connection < 3; ++connection) {
      const Descriptor turned_away = MakeSocket();
      ASSERT_EQ(ConnectTo(acceptor_->port(), turned_away), 0);
      ASSERT_EQ(NextFrom(turned_away), "the end");
      EXPECT_EQ(arrivals_.count(), 0u);
    }
    GiveBack();
    const Descriptor client = MakeSocket();
    ASSERT_EQ(ConnectTo(acceptor_->port(), client), 0);
    ExpectConnected(client, arrivals_.Next());
    EXPECT_EQ(log_.Count(kComplaint), shortage);
  }
}

TEST_F(AcceptorShortageTest, AcceptorEndsDuringAShortage) {
  const Descriptor client = MakeSocket();
  TakeAll();
  ASSERT_EQ(ConnectTo(acceptor_->port(), client), 0);
  ASSERT_TRUE(log_.Await(kComplaint));
  acceptor_.reset();
  EXPECT_EQ(NextFrom(client), "the end");
  EXPECT_EQ(arrivals_.count(), 0u);
}

}  // namespace
}  // namespace nereus
