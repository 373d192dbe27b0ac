// The transport contract over gRPC, and what only hostile or foreign clients of
// its port can do.

#include "common/transport/grpc_transport.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/transport/handshake.h"
#include "tests/common/transport_contract.h"

namespace nereus {
namespace {

using testing::HasSubstr;

const PeerId kWorker0 = PeerId::Worker(0);
const PeerId kWorker1 = PeerId::Worker(1);
const PeerId kShard0 = PeerId::Shard(0);

TransportKind GrpcKind(GrpcTransportOptions options = {}) {
  return {"grpc", [options](int port) {
            GrpcTransportOptions here = options;
            here.port = port;
            return GrpcTransport::Start(here);
          }};
}

INSTANTIATE_TEST_SUITE_P(Grpc, TransportContractTest,
                         testing::Values(GrpcKind()),
                         [](const auto& info) { return info.param.name; });

std::string FrameBytes(const Frame& frame) {
  std::string bytes(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(frame.header, reinterpret_cast<uint8_t*>(bytes.data()));
  bytes.append(reinterpret_cast<const char*>(frame.payload.data()),
               static_cast<size_t>(frame.payload.bytes()));
  return bytes;
}

Frame Checked(Frame frame) {
  frame.header.payload_crc =
      Crc32c(frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
  return frame;
}

std::string HelloBytes(PeerId self, PeerId intended) {
  Hello hello = TestHello(self);
  hello.intended = intended;
  return FrameBytes(HelloFrame(hello));
}

// A client of the port that is not a transport.
class RawStream {
 public:
  explicit RawStream(const std::string& address,
                     const std::string& method = "/nereus.v1.Data/Frames",
                     bool compress = false)
      : stub_(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(std::chrono::system_clock::now() +
                          absl::ToChronoSeconds(kPatience));
    if (compress) context_.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(this);
    Next();
  }
  ~RawStream() {
    context_.TryCancel();
    Status();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), this);
    return Next();
  }

  // The next frame; nothing if the stream has ended.
  std::optional<Frame> Read() {
    grpc::ByteBuffer message;
    stream_->Read(&message, this);
    if (!Next()) return std::nullopt;
    grpc::Slice slice;
    EXPECT_TRUE(message.DumpToSingleSlice(&slice).ok());
    Frame frame;
    frame.header = *DecodeFrameHeader(
        absl::MakeConstSpan(slice.begin(), kFrameHeaderBytes));
    frame.payload = Buffer::Allocate(frame.header.payload_bytes);
    std::copy(slice.begin() + kFrameHeaderBytes, slice.end(),
              frame.payload.data());
    return frame;
  }

  // The text of the refusal that ends the stream.
  std::string Refusal() {
    while (const std::optional<Frame> frame = Read()) {
      if (frame->header.kind != FrameKind::kRefusal) continue;
      HangUp();
      return ReadRefusal(*frame);
    }
    return "the stream ended without a refusal";
  }

  // Writes no more.
  void HangUp() {
    stream_->WritesDone(this);
    Next();
  }

  // How the stream ended.
  grpc::Status Status() {
    if (!status_.has_value()) {
      status_.emplace();
      stream_->Finish(&*status_, this);
      Next();
    }
    return *status_;
  }

 private:
  bool Next() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::optional<grpc::Status> status_;
};

// A shard with one good worker, which must not notice what strangers do.
class GrpcStrangerTest : public testing::Test {
 protected:
  void Join(GrpcTransportOptions options = {}) {
    shard_ = TestNode::Start(GrpcKind(options), kShard0);
    worker_ = TestNode::Start(GrpcKind(), kWorker0);
    ASSERT_TRUE(JoinNodes(*worker_, *shard_));
  }

  // The good worker's connection still carries frames.
  void ExpectUndisturbed() {
    const size_t before = shard_->heard.size();
    worker_->SendTo(kShard0, 1, 100);
    EXPECT_TRUE(PollUntil({shard_.get(), worker_.get()},
                          [&] { return shard_->heard.size() == before + 1; }));
    EXPECT_TRUE(worker_->ended.empty());
    for (const TestNode::Ended& ended : shard_->ended) {
      EXPECT_NE(ended.peer, kWorker0);
    }
  }

  // Opens a stream as worker 1, through the handshake.
  std::unique_ptr<RawStream> Introduce() {
    auto stream = std::make_unique<RawStream>(shard_->address());
    EXPECT_TRUE(stream->Write(HelloBytes(kWorker1, kShard0)));
    const std::optional<Frame> answer = stream->Read();
    EXPECT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.kind, FrameKind::kHello);
    EXPECT_EQ(ReadHello(*answer)->self, kShard0);
    return stream;
  }

  std::unique_ptr<TestNode> shard_;
  std::unique_ptr<TestNode> worker_;
};

TEST_F(GrpcStrangerTest, FirstMessageThatIsNoHelloIsRefused) {
  Join();
  std::string bad_magic = HelloBytes(kWorker1, kShard0);
  bad_magic[0] ^= 1;
  std::string too_long = HelloBytes(kWorker1, kShard0) + "x";
  std::string bad_payload = HelloBytes(kWorker1, kShard0);
  bad_payload.back() ^= 1;
  Frame huge = Checked(TestFrame(kWorker1, 1, TestPayload(1, 1000)));
  huge.header.kind = FrameKind::kHello;
  Frame no_peers = HelloFrame(TestHello(kWorker1));
  no_peers.payload = Buffer::Allocate(0);
  no_peers.header.payload_bytes = 0;
  const struct {
    std::string bytes;
    const char* text;
  } kCases[] = {
      {"", "a message of 0 bytes ends in a frame header, 64 bytes, after 0"},
      {"GET / HTTP/1.1\r\n\r\n", "a message of 18 bytes"},
      {std::string(1000, 'x'), "magic"},
      {bad_magic, "magic"},
      {too_long, "after 1 frames"},
      {bad_payload, "checksum"},
      {FrameBytes(Checked(TestFrame(kWorker1, 1, TestPayload(1, 4)))),
       "must open with a hello, not with contribution"},
      {FrameBytes(huge), "one frame of at most 1024 bytes"},
      {FrameBytes(Checked(no_peers)),
       "self: a member's role has the unknown value 0"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    RawStream stream(shard_->address());
    stream.Write(c.bytes);
    EXPECT_THAT(stream.Refusal(), HasSubstr(c.text));
    EXPECT_EQ(stream.Status().error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
  }
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, BadFrameAfterTheHandshakeEndsTheConnection) {
  Join();
  const Frame good = Checked(TestFrame(kWorker1, 9, TestPayload(9, 4)));
  std::string bad_crc = FrameBytes(good);
  bad_crc.back() ^= 1;
  std::string bad_header = FrameBytes(good);
  bad_header[24] ^= 1;
  const struct {
    std::string bytes;
    const char* text;
  } kCases[] = {
      {bad_crc, "the payload's checksum is"},
      {bad_header, "frame header: checksum"},
      {FrameBytes(good) + "x",
       "a message of 81 bytes ends in a frame header, 64 bytes, after 1"},
      {FrameBytes(good).substr(0, 70),
       "the message has 70 bytes, and ends before the frame"},
      {FrameBytes(good).substr(0, 63), "a message of 63 bytes"},
      {HelloBytes(kWorker1, kShard0), "a second hello"},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const auto stream = Introduce();
    const size_t ended = shard_->ended.size();
    const size_t heard = shard_->heard.size();
    stream->Write(FrameBytes(good));
    stream->Write(c.bytes);
    ASSERT_TRUE(PollUntil({shard_.get()},
                          [&] { return shard_->heard.size() == heard + 1; }));
    // The refusal is written when the owner meets the frame, and the stream
    // ends when it has been read: not on one thread.
    std::string refusal;
    std::thread reader([&] { refusal = stream->Refusal(); });
    EXPECT_TRUE(PollUntil({shard_.get()},
                          [&] { return shard_->ended.size() > ended; }));
    reader.join();
    EXPECT_THAT(refusal, HasSubstr(c.text));
    EXPECT_EQ(shard_->ended.back().peer, kWorker1);
    EXPECT_EQ(shard_->ended.back().reason.code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(shard_->heard.size(), heard + 1);
  }
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, MessageLongerThanAnyFrameEndsTheStream) {
  Join();
  const auto stream = Introduce();
  stream->Write(
      std::string(kFrameHeaderBytes + kFramePayloadBytesMax + 1, 'x'));
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_EQ(shard_->ended[0].peer, kWorker1);
  EXPECT_FALSE(shard_->ended[0].reason.ok());
  EXPECT_FALSE(stream->Read().has_value());
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, CompressedMessageIsNotExpanded) {
  Join();
  RawStream stream(shard_->address(), "/nereus.v1.Data/Frames",
                   /*compress=*/true);
  stream.Write(std::string(64 << 20, '\0'));
  EXPECT_THAT(stream.Refusal(), HasSubstr("magic"));
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, RefusalByThePeerEndsTheConnectionWithItsText) {
  Join();
  const auto stream = Introduce();
  stream->Write(FrameBytes(RefusalFrame(kWorker1, "no\nthanks")));
  stream->HangUp();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_EQ(shard_->ended[0].reason,
            absl::FailedPreconditionError("no?thanks"));
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, ClientThatVanishesIsNoticed) {
  Join();
  auto stream = Introduce();
  stream.reset();
  ASSERT_TRUE(
      PollUntil({shard_.get()}, [&] { return !shard_->ended.empty(); }));
  EXPECT_EQ(shard_->ended[0].peer, kWorker1);
  EXPECT_EQ(shard_->ended[0].reason.code(), absl::StatusCode::kUnavailable);
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, OtherMethodsAreUnimplemented) {
  Join();
  RawStream stream(shard_->address(), "/nereus.v1.Data/Other");
  EXPECT_FALSE(stream.Read().has_value());
  EXPECT_EQ(stream.Status().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, RandomBytesOnThePortChangeNothing) {
  Join();
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_GE(fd, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(shard_->transport().port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(
        connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    // Every other one opens like HTTP/2 does.
    std::string bytes = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (int n = 0; n < 5000; ++n) bytes.push_back(static_cast<char>(random()));
    // The other side may have hung up already.
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    char drain[256];
    while (recv(fd, drain, sizeof(drain), 0) > 0) {
    }
    close(fd);
  }
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, SilentStrangerIsCutOff) {
  GrpcTransportOptions options;
  options.handshake_timeout = absl::Milliseconds(500);
  Join(options);
  RawStream stream(shard_->address());
  EXPECT_FALSE(stream.Read().has_value());
  EXPECT_FALSE(stream.Status().ok());
  ExpectUndisturbed();
}

TEST_F(GrpcStrangerTest, StrangersCannotPileUp) {
  GrpcTransportOptions options;
  options.handshakes_max = 2;
  Join(options);
  RawStream first(shard_->address());
  RawStream second(shard_->address());
  // A stream is counted once its headers have arrived: which is the third, the
  // network decides, so try until the limit shows.
  const absl::Time deadline = absl::Now() + kPatience;
  bool limited = false;
  while (!limited && absl::Now() < deadline) {
    RawStream third(shard_->address());
    third.Write("nonsense");
    third.Refusal();
    limited =
        third.Status().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  }
  EXPECT_TRUE(limited);
  ExpectUndisturbed();
}

TEST(GrpcTransportTest, ForeignServerIsGivenUpAtOnce) {
  class OtherService final : public grpc::CallbackGenericService {};
  OtherService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterCallbackGenericService(&service);
  const auto server = builder.BuildAndStart();
  auto worker = TestNode::Start(GrpcKind(), kWorker0);
  worker->transport().Connect(kShard0, absl::StrCat("127.0.0.1:", port),
                              absl::Now() + kPatience);
  ASSERT_TRUE(
      PollUntil({worker.get()}, [&] { return !worker->ended.empty(); }));
  EXPECT_EQ(worker->ended[0].reason.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(worker->ended[0].reason.message()),
              HasSubstr("not a Nereus data port"));
}

TEST(GrpcTransportOptionsTest, EachFieldIsChecked) {
  const struct {
    const char* text;
    std::function<void(GrpcTransportOptions&)> change;
  } kCases[] = {
      {"host is empty", [](auto& options) { options.host = ""; }},
      {"port is -1", [](auto& options) { options.port = -1; }},
      {"port is 65536", [](auto& options) { options.port = 65536; }},
      {"handshake_timeout is 0",
       [](auto& options) { options.handshake_timeout = absl::ZeroDuration(); }},
      {"closing_timeout is -1s",
       [](auto& options) { options.closing_timeout = -absl::Seconds(1); }},
      {"handshakes_max is 0",
       [](auto& options) { options.handshakes_max = 0; }},
      {"undelivered_max is 0",
       [](auto& options) { options.undelivered_max = 0; }},
  };
  EXPECT_TRUE(GrpcTransportOptions().Validate().ok());
  for (const auto& c : kCases) {
    GrpcTransportOptions options;
    c.change(options);
    const auto transport = GrpcTransport::Start(options);
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(transport.status().message()), HasSubstr(c.text));
  }
}

}  // namespace
}  // namespace nereus
