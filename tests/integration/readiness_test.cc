// The answers of a server's control port to health checks.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/local_cluster.h"

namespace nereus {
namespace {

// Asks as a kubelet does: grpc.health.v1.Health/Check of the service
// "readiness". The messages have one field each, so they are written by hand:
// HealthCheckRequest{service = 1}, HealthCheckResponse{status = 1}.
bool IsReady(const Server& server) {
  const auto channel =
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server.control_port()),
                          grpc::InsecureChannelCredentials());
  const std::string service = "readiness";
  const std::string bytes = absl::StrCat(
      "\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(
      &context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  if (!reply.Dump(&slices).ok() || slices.empty()) return false;
  constexpr char kServing[] = "\x08\x01";
  return std::string(slices[0].begin(), slices[0].end()) == kServing;
}

bool AwaitReady(const Server& server, bool ready) {
  const absl::Time limit = absl::Now() + LocalCluster::kPatience;
  while (IsReady(server) != ready) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

// A supervisor ends one server at a time, and the next one only when all are
// ready: without this, a job would lose both servers that have a shard.
TEST(ReadinessTest, ServerIsReadyWhileItsShardsHaveBackups) {
  ServerOptions options = PlainServerOptions();
  options.spec.workers = 1;
  options.spec.shards = 2;
  options.spec.options.backup = true;
  LocalCluster cluster(options);
  EXPECT_FALSE(IsReady(cluster.server(0)));
  std::vector<float> parameters(4096, 1.0f);
  LayerSpec layer;
  layer.name = "v";
  layer.kind = LayerKind::kVector;
  layer.m = 1;
  layer.n = layer.parameters = 4096;
  layer.rows = 1;
  auto client = Client::Connect(cluster.client_options(),
                                {{layer, absl::MakeSpan(parameters)}});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(AwaitReady(cluster.server(0), true));
  EXPECT_TRUE(AwaitReady(cluster.server(1), true));
  cluster.server(1).Leave();
  std::thread leaver([&] { EXPECT_TRUE(cluster.server(1).AwaitEnd().ok()); });
  EXPECT_TRUE(AwaitReady(cluster.server(1), false));
  // Server 0 now serves both shards, without a backup.
  EXPECT_TRUE(AwaitReady(cluster.server(0), false));
  leaver.join();
  EXPECT_TRUE(cluster.server(1).has_left_early());
  cluster.Replace(1);
  EXPECT_TRUE(AwaitReady(cluster.server(0), true));
  EXPECT_TRUE(AwaitReady(cluster.server(1), true));
}

}  // namespace
}  // namespace nereus
