#include "tests/testing/process_table.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace nereus {

// Reads /proc/PID/stat: "pid (name) state parent ...".
std::optional<ProcessInfo> ReadProcess(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<std::string> rest =
      absl::StrSplit(text.substr(close + 1), ' ', absl::SkipEmpty());
  ProcessInfo process;
  if (rest.size() < 2 || !absl::SimpleAtoi(pid, &process.pid) ||
      !absl::SimpleAtoi(rest[1], &process.parent)) {
    return std::nullopt;
  }
  process.name = text.substr(open + 1, close - open - 1);
  process.state = rest[0][0];
  return process;
}

std::vector<ProcessInfo> ChildrenOf(pid_t parent) {
  std::vector<ProcessInfo> children;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", error)) {
    const auto process = ReadProcess(entry.path().filename().string());
    if (process.has_value() && process->parent == parent) {
      children.push_back(*process);
    }
  }
  return children;
}

bool IsGone(pid_t pid) {
  const auto process = ReadProcess(absl::StrCat(pid));
  return !process.has_value() || process->state == 'Z';
}

}  // namespace nereus
