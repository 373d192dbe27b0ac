// A member and a coordinator of a version that has other messages.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/control_channel.h"
#include "common/rpc/control_server.h"
#include "common/rpc/session_client.h"
#include "proto/coordinator.grpc.pb.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Accepts each session, and sends one message without content.
class OtherCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status Attend(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::MemberMessage>*
          session) override {
    context->AddInitialMetadata(kSessionHeader, "open");
    session->Write(v1::CoordinatorMessage());
    v1::MemberMessage message;
    while (session->Read(&message)) {
    }
    return grpc::Status::OK;
  }
};

// In each further session the coordinator would send the message again.
TEST(UnreadMessageTest, MessageThatIsNotKnownEndsTheMembership) {
  OtherCoordinator coordinator;
  const auto server = ControlServer::Start("127.0.0.1", 0, {&coordinator});
  ASSERT_TRUE(server.ok()) << server.status();
  SessionClientOptions options;
  options.coordinator_address = absl::StrCat("127.0.0.1:", (*server)->port());
  std::promise<absl::Status> failed;
  SessionClient::Events events;
  events.opened = [] {};
  events.message = [](const CoordinatorMessage&) { ADD_FAILURE(); };
  events.heartbeat = [] { return std::optional<Heartbeat>(); };
  events.failed = [&](const absl::Status& why) { failed.set_value(why); };
  SessionClient client(options, std::move(events));
  client.Start();
  const absl::Status why = failed.get_future().get();
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("sent a message that this version does not know"));
}

}  // namespace
}  // namespace nereus
