#include "common/base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nereus {
namespace {

TEST(AddressTest, Ipv6AddressGetsBracketsOnce) {
  EXPECT_EQ(JoinHostPort("10.0.0.1", 7000), "10.0.0.1:7000");
  EXPECT_EQ(JoinHostPort("node-3", 0), "node-3:0");
  EXPECT_EQ(JoinHostPort("::1", 7000), "[::1]:7000");
  EXPECT_EQ(JoinHostPort("[::1]", 7000), "[::1]:7000");
}

TEST(AddressTest, WildcardIsNoAddressForPeers) {
  EXPECT_TRUE(CheckHost("127.0.0.1").ok());
  EXPECT_TRUE(CheckHost("::1").ok());
  for (const char* host : {"", "0.0.0.0", "::", "[::]", "*"}) {
    EXPECT_EQ(CheckHost(host).code(), absl::StatusCode::kInvalidArgument)
        << host;
  }
  EXPECT_THAT(std::string(CheckHost("0.0.0.0").message()),
              testing::HasSubstr("host is 0.0.0.0, which peers cannot"));
}

TEST(AddressTest, PortHasSixteenBits) {
  EXPECT_TRUE(CheckPort("data_port", 0).ok());
  EXPECT_TRUE(CheckPort("data_port", 65535).ok());
  EXPECT_FALSE(CheckPort("data_port", -1).ok());
  EXPECT_EQ(CheckPort("data_port", 65536).message(),
            "data_port is 65536, must be in [0, 65535]");
}

}  // namespace
}  // namespace nereus
