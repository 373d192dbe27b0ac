#include "common/http/http_server.h"

#include <civetweb.h>

#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"
#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Headers of every answer. A page takes nothing from other servers, no other
// page may embed it, and nothing keeps a copy.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

absl::string_view Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// Returns the first address of `host`, with `port`: CivetWeb takes only
// numbers.
absl::StatusOr<std::string> NumericAddress(const std::string& host, int port) {
  // Resolve refuses port 0, with which CivetWeb picks one.
  const std::string any_port = JoinHostPort(host, 1);
  const std::string address =
      NEREUS_TRY(Resolve(any_port, /*numeric_only=*/false)).front().ToString();
  return absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
}

}  // namespace

struct HttpServer::Impl {
  // Answers one request. CivetWeb calls this on its threads.
  static int Answer(mg_connection* connection, void* data);

  std::map<std::string, Handler> pages;
  mg_context* context = nullptr;
};

int HttpServer::Impl::Answer(mg_connection* connection, void* data) {
  const auto& impl = *static_cast<const Impl*>(data);
  const mg_request_info& request = *mg_get_request_info(connection);
  const std::string_view method = request.request_method;
  // A request for "*" has no path.
  const auto page =
      impl.pages.find(request.local_uri == nullptr ? "" : request.local_uri);
  HttpAnswer answer;
  if (method != "GET" && method != "HEAD") {
    answer.code = 405;
    answer.body = "only GET and HEAD\n";
  } else if (page == impl.pages.end()) {
    answer.code = 404;
    answer.body = "there are:\n";
    for (const auto& [path, handler] : impl.pages) {
      absl::StrAppend(&answer.body, path, "\n");
    }
  } else {
    answer = page->second();
  }
  const std::string head =
      absl::StrCat("HTTP/1.1 ", answer.code, " ", Reason(answer.code), "\r\n",
                   kHeaders, "Content-Type: ", answer.type,
                   "\r\nContent-Length: ", answer.body.size(), "\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (method != "HEAD") {
    mg_write(connection, answer.body.data(), answer.body.size());
  }
  return answer.code;
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& host, int port, std::map<std::string, Handler> pages) {
  const std::string address = NEREUS_TRY(NumericAddress(host, port));
  auto impl = std::make_unique<Impl>();
  impl->pages = std::move(pages);
  // No folder of files is configured, so CivetWeb serves none.
  std::array options = {"listening_ports", address.c_str(),
                        // A client that sends its request byte by byte keeps a
                        // thread for request_timeout_ms.
                        "num_threads", "32", "request_timeout_ms", "5000",
                        "max_request_size", "16384", "enable_keep_alive", "no",
                        static_cast<const char*>(nullptr)};
  mg_callbacks callbacks = {};
  // CivetWeb must not log: a client could fill the log. 1: no line is written.
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  mg_init_data init = {&callbacks, nullptr, options.data()};
  unsigned code = 0;
  std::array<char, 256> text = {};
  mg_error_data error = {&code, text.data(), text.size()};
  impl->context = mg_start2(&init, &error);
  if (impl->context == nullptr) {
    return UnavailableError("cannot listen at ", address,
                            " for HTTP (http_port): ", text.data());
  }
  // Each path: "**" matches slashes, too.
  mg_set_request_handler(impl->context, "/**", &Impl::Answer, impl.get());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { mg_stop(impl_->context); }

int HttpServer::port() const {
  std::array<mg_server_port, 1> ports = {};
  mg_get_server_ports(impl_->context, 1, ports.data());
  return ports[0].port;
}

}  // namespace nereus
