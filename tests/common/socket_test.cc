#include "common/base/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

constexpr int kPatienceMs = 60'000;

std::string CongestionControl(const Descriptor& socket) {
  char name[32] = {};
  socklen_t length = sizeof(name) - 1;
  EXPECT_EQ(
      getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

void Await(const Descriptor& socket, int16_t events) {
  pollfd ready = {socket.get(), events, 0};
  ASSERT_EQ(poll(&ready, 1, kPatienceMs), 1);
}

TEST(SocketTest, AConnectionWithAShortRoundTripUsesCubicInPlaceOfBbr) {
  const Descriptor fresh(socket(AF_INET, SOCK_STREAM, 0));
  const std::string own = CongestionControl(fresh);
  const std::string expected = absl::StartsWith(own, "bbr") ? "cubic" : own;
  const auto listener = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto addresses =
      Resolve(absl::StrCat("127.0.0.1:", listener->port), true);
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  const auto dialled = BeginConnect(addresses->front());
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  Await(*dialled, POLLOUT);
  ASSERT_EQ(ConnectResult(*dialled), absl::OkStatus());
  Await(listener->socket, POLLIN);
  const Accepted accepted = Accept(listener->socket);
  ASSERT_TRUE(accepted.socket.valid());
  EXPECT_EQ(CongestionControl(*dialled), expected);
  EXPECT_EQ(CongestionControl(accepted.socket), expected);
}

}  // namespace
}  // namespace nereus
