#include "server/process/coordinator_pages.h"

#include <string>

#include "server/report/page_files.h"
#include "server/report/status_report.h"

namespace nereus {

ProcessPages::Pages CoordinatorPages(const CoordinatorService& service) {
  ProcessPages::Pages pages;
  const auto add_file = [&](const std::string& path, const PageFile& file,
                            const std::string& type) {
    pages[path] =
        [answer = HttpAnswer{.type = type, .body = std::string(file.text)}] {
          return answer;
        };
  };
  add_file("/", PageFiles()[0], "text/html; charset=utf-8");
  add_file("/script.js", PageFiles()[1], "text/javascript; charset=utf-8");
  add_file("/style.css", PageFiles()[2], "text/css; charset=utf-8");
  pages["/status.json"] = [&service]() -> HttpAnswer {
    return {.type = "application/json", .body = StatusJson(service.Status())};
  };
  return pages;
}

}  // namespace nereus
