#include "server/admin/group_members.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"

namespace nereus {
namespace {

// Length of a line of /proc/N/stat, which has 52 fields, at most.
constexpr std::streamsize kLineBytesMax = 4096;

// True if the process is in the group and runs. A line of /proc/N/stat begins
// "N (name) S parent group", where S is the state, and the name may have spaces
// and brackets. A process that ends meanwhile has no such line, and counts as
// ended.
bool IsRunningMember(const std::filesystem::path& process, pid_t group) {
  // An iterator of the stream would throw an exception if the process ends
  // between the opening and the reading.
  std::ifstream file(process / "stat");
  std::string line(kLineBytesMax, '\0');
  file.read(line.data(), kLineBytesMax);
  line.resize(file.gcount());
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return false;
  char state = 0;
  int parent = 0;
  pid_t group_of_process = 0;
  if (std::sscanf(line.c_str() + end_of_name + 1, " %c %d %d", &state, &parent,
                  &group_of_process) != 3) {
    return false;
  }
  return group_of_process == group && state != 'Z' && state != 'X';
}

}  // namespace

bool HasOtherMembers(pid_t group, const std::string& proc) {
  std::error_code error;
  std::filesystem::directory_iterator entry(proc, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    pid_t pid = 0;
    const bool is_process =
        absl::SimpleAtoi(entry->path().filename().string(), &pid);
    if (is_process && pid != group && IsRunningMember(entry->path(), group)) {
      return true;
    }
    entry.increment(error);
  }
  return false;
}

}  // namespace nereus
