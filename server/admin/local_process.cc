#include "server/admin/local_process.h"

#include <signal.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/exit_codes.h"
#include "common/base/status.h"
#include "common/flags/model_file.h"
#include "nlohmann/json.hpp"

namespace nereus {

absl::StatusOr<std::string> ParseListeningLine(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" ="));
  const bool ends_well =
      words.size() == 5 || (words.size() == 7 && words[5] == "http");
  if (ends_well && words[0] == "listening" && words[1] == "control" &&
      words[3] == "data" && !words[2].empty() && !words[4].empty()) {
    return words[2];
  }
  return InvalidArgumentError("not a line \"listening control=... data=...\": ",
                              line.substr(0, LocalProcess::kErrorLineBytesMax));
}

std::string AsTextLine(const std::string& line) {
  if (!absl::StartsWith(line, "{")) return line;
  const auto json = nlohmann::json::parse(line, /*cb=*/nullptr,
                                          /*allow_exceptions=*/false);
  const auto text = [&](const char* key) -> std::string {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>()
                                                     : "";
  };
  if (!json.is_object() || text("severity").empty()) return line;
  LogContext context;
  context.role = text("role");
  context.name = text("name");
  if (const auto rank = json.find("rank");
      rank != json.end() && rank->is_number_integer()) {
    context.rank = rank->get<int64_t>();
  }
  return absl::StrCat(text("time"), " ", text("severity"), " [",
                      context.Label(), "] ", text("message"));
}

bool IsLineShown(absl::string_view line, LogLevel level) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::MaxSplits(' ', 2));
  if (words.size() < 3 || !absl::StartsWith(words[2], "[")) return true;
  if (words[1] == "DEBUG") return level <= LogLevel::kDebug;
  if (words[1] == "INFO") return level <= LogLevel::kInfo;
  if (words[1] == "WARNING") return level <= LogLevel::kWarning;
  return true;
}

bool LocalProcess::was_killed() const {
  return exit.has_value() &&
         (exit->signal != 0 || exit->code == kExitTerminated);
}

bool LocalProcess::was_killed_from_outside() const {
  if (!exit.has_value()) return false;
  const int code = ShellCode(*exit);
  return code == ShellCode({0, SIGKILL}) || code == ShellCode({0, SIGTERM});
}

std::string LocalProcess::DescribeFailure() const {
  if (!mistake.empty()) return absl::StrCat(name, " ", mistake);
  const char* const early =
      is_server ? " before it listened" : " without a result";
  return absl::StrCat(name, " ", DescribeExit(*exit), exit->ok() ? early : "");
}

absl::StatusOr<JobStatus> ReadLastStatus(const std::string& file) {
  const std::string text = NEREUS_TRY(ReadTextFile(file));
  const auto json = nlohmann::json::parse(text, /*cb=*/nullptr,
                                          /*allow_exceptions=*/false);
  const auto list = [](const auto& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_array() ? *found
                                                      : nlohmann::json::array();
  };
  const auto text_of = [](const auto& object, const char* key) -> std::string {
    const auto found = object.find(key);
    return found != object.end() && found->is_string()
               ? found->template get<std::string>()
               : "";
  };
  if (!json.is_object()) {
    return InvalidArgumentError(file, " is not the status of a job");
  }
  JobStatus status;
  status.state =
      NEREUS_TRY(ParseName<kJobStateNames>("state", text_of(json, "state")));
  status.reason = text_of(json, "reason");
  for (const auto& worker : list(json, "workers")) {
    JobStatus::Member& member = status.members.emplace_back();
    member.id = PeerId::Worker(0);
    member.name = text_of(worker, "name");
    const auto left = worker.find("left");
    member.left = left != worker.end() && *left == true;
  }
  for (const auto& event : list(json, "events")) {
    JobStatus::Event& added = status.events.emplace_back();
    absl::ParseTime(absl::RFC3339_full, text_of(event, "time"), &added.at,
                    nullptr);
    added.event = ParseName<kLogEventNames>("event", text_of(event, "event"))
                      .value_or(LogEvent::kNone);
    added.member = text_of(event, "member");
  }
  return status;
}

}  // namespace nereus
