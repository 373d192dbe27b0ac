#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace nereus {

// Answer to a request.
struct HttpAnswer {
  int code = 200;                                  // Status code of HTTP.
  std::string type = "text/plain; charset=utf-8";  // Content-Type.
  std::string body;
};

// Serves pages of this process over HTTP, for metrics and people. Read-only: it
// answers GET and HEAD, and reads no body. It has two threads, so two slow
// clients make others wait, but never the job.
class HttpServer {
 public:
  // Makes an answer. Any thread may call it, several at a time.
  using Handler = std::function<HttpAnswer()>;

  // Listens at `host` and `port`; with port 0, at a free port. `pages`: handler
  // of each path, such as "/metrics"; other paths get code 404. Errors:
  // kUnavailable, the port cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& host, int port, std::map<std::string, Handler> pages);
  // Waits until the handlers that run have returned.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
