#include "common/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    auto server = HttpServer::Start(
        "127.0.0.1", 0,
        {{"/", [] { return HttpAnswer{.type = "text/html", .body = "hello"}; }},
         {"/metrics", [this] {
            ++calls_;
            return HttpAnswer{.body = "a 1\n"};
          }}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Returns a new connection to the server.
  int Connect() const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(socket, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    return socket;
  }

  // Sends bytes and returns what comes back until the connection ends.
  std::string Exchange(const std::string& request) const {
    const int socket = Connect();
    // The server may end the connection before it has read everything.
    (void)!send(socket, request.data(), request.size(), MSG_NOSIGNAL);
    // Else the server would wait for the rest of a request until its timeout.
    shutdown(socket, SHUT_WR);
    std::string answer;
    char bytes[4096];
    for (;;) {
      const ssize_t count = recv(socket, bytes, sizeof(bytes), 0);
      if (count <= 0) break;
      answer.append(bytes, count);
    }
    close(socket);
    return answer;
  }

  std::string Get(const std::string& path) const {
    return Exchange(
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }

  std::atomic<int> calls_ = 0;  // Calls of the handler of /metrics.
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWithThePageOfThePath) {
  EXPECT_THAT(Get("/"), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                              HasSubstr("Content-Type: text/html\r\n"),
                              HasSubstr("Content-Length: 5\r\n"),
                              HasSubstr("default-src 'self'"),
                              EndsWith("\r\n\r\nhello")));
  EXPECT_THAT(Get("/metrics?x=1"), EndsWith("\r\n\r\na 1\n"));
  EXPECT_EQ(calls_, 1);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  EXPECT_THAT(Exchange("HEAD /metrics HTTP/1.0\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 4\r\n"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpServerTest, OtherPathsAndMethodsAreRefused) {
  EXPECT_THAT(Get("/etc/passwd"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Get("/../../etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metrics/"), StartsWith("HTTP/1.1 404"));
  for (const char* const method : {"OPTIONS", "GET", "HEAD"}) {
    EXPECT_THAT(
        Exchange(absl::StrCat(method, " * HTTP/1.1\r\nHost: a\r\n\r\n")),
        Not(HasSubstr("200 OK")))
        << method;
  }
  EXPECT_THAT(Get("/"), EndsWith("hello")) << "the server lives";
  for (const char* const method : {"POST", "PUT", "DELETE", "PATCH"}) {
    EXPECT_THAT(Exchange(absl::StrCat(method, " /metrics HTTP/1.1\r\nHost: a",
                                      "\r\nContent-Length: 2\r\n\r\nxx")),
                StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"))
        << method;
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, EndsWhatIsNotHttpOrTooLong) {
  EXPECT_THAT(Exchange("\x16\x03\x01\x02 hello\r\n\r\n"),
              Not(HasSubstr("200 OK")));
  EXPECT_THAT(Exchange(absl::StrCat("GET / HTTP/1.1\r\nA: ",
                                    std::string(1 << 20, 'x'), "\r\n\r\n")),
              Not(HasSubstr("200 OK")));
}

// Returns the bytes of memory in use.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(HttpServerTest, ManyHostileRequestsLeaveMemoryFlat) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory that was freed";
#endif
  const std::vector<std::string> requests = {
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
      absl::StrCat("GET /", std::string(100'000, 'x'), " HTTP/1.1\r\n\r\n"),
      absl::StrCat("GET / HTTP/1.1\r\nA: ", std::string(200'000, 'x')),
      "POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
      "GET\r\n\r\n"};
  const auto send_all = [&](int times) {
    for (int i = 0; i < times; ++i) Exchange(requests[i % requests.size()]);
  };
  send_all(60);
  const int64_t before = ResidentBytes();
  send_all(500);
  EXPECT_LT(ResidentBytes() - before, 1 << 20);
}

TEST_F(HttpServerTest, APortInUseIsAnErrorThatNamesIt) {
  const auto second = HttpServer::Start("127.0.0.1", server_->port(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(absl::StrCat("127.0.0.1:", server_->port())),
                    HasSubstr("http_port")));
}

// Clients that never end their requests do not keep the page from others.
TEST_F(HttpServerTest, SilentClientsDoNotHoldUpOthers) {
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) {
    sockets.push_back(Connect());
    (void)!send(sockets.back(), "GET", 3, MSG_NOSIGNAL);
  }
  const absl::Time from = SteadyNow();
  EXPECT_THAT(Get("/metrics"), EndsWith("a 1\n"));
  EXPECT_LT(SteadyNow() - from, absl::Seconds(2));
  for (const int socket : sockets) close(socket);
}

TEST_F(HttpServerTest, AnswersSeveralAtATime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      for (int j = 0; j < 20; ++j) {
        EXPECT_THAT(Get("/metrics"), EndsWith("a 1\n"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls_, 160);
}

}  // namespace
}  // namespace nereus
