#include "server/admin/program_workers.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "common/base/status.h"

namespace nereus {
namespace {

// Returns the environment of this process, with these values of `variables`.
// Leaves out a variable without a value.
std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::optional<std::string>>& variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    if (variables.count(name) == 0) environment.emplace_back(text);
  }
  for (const auto& [name, value] : variables) {
    if (value.has_value()) {
      environment.push_back(absl::StrCat(name, "=", *value));
    }
  }
  return environment;
}

}  // namespace

int ThreadsOfEach(int cores, int workers) {
  return std::max(1, cores / workers);
}

// Returns 1 if the call fails, as on a machine with more cores than the set can
// name.
int UsableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

// Removes the variables of the ports and of the address to listen at, so that
// the defaults hold: otherwise all workers would get the same port.
ProcessOptions ProgramWorkers::Program(int worker,
                                       const std::string& coordinator) const {
  std::map<std::string, std::optional<std::string>> variables = {
      {"NEREUS_COORDINATOR", coordinator},
      {"NEREUS_JOB_NAME", options_.spec.name},
      {"NEREUS_NAME", absl::StrCat(worker)},
      {"NEREUS_RANK", absl::StrCat(worker)},
      {"NEREUS_NODE", NodeOfWorker(options_, worker)},
      {"NEREUS_SHARED_MEMORY", options_.shared_memory ? "auto" : "off"},
      {"NEREUS_SHARE", ShareFolderOf(options_, worker)},
      {"NEREUS_SHARE_WEIGHT", absl::StrCat(options_.share_weight)},
      {"NEREUS_LOG_FORMAT",
       options_.log.format == LogFormat::kJson ? "json" : "text"},
      {"NEREUS_LOCAL_RANK", absl::StrCat(worker)},
      {"NEREUS_LOCAL_SIZE", absl::StrCat(options_.spec.workers)},
      {"NEREUS_HOST", std::nullopt},
      {"NEREUS_CONTROL_PORT", std::nullopt},
      {"NEREUS_DATA_PORT", std::nullopt},
      {"NEREUS_HTTP_PORT", std::nullopt}};
  for (const std::string& variable : own_variables_) {
    variables.try_emplace(variable, std::nullopt);
  }
  if (threads_.has_value()) {
    variables["OMP_NUM_THREADS"] = absl::StrCat(*threads_);
  }
  // Makes Python write each line at once. Otherwise it keeps its lines in a
  // buffer, because its output is a pipe.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) {
    variables["PYTHONUNBUFFERED"] = "1";
  }
  return {command_, EnvironmentWith(variables)};
}

absl::StatusOr<bool> ProgramWorkers::OnOutputLine(int worker,
                                                  const std::string& line) {
  out_->Write(worker, line);
  return false;
}

bool ProgramWorkers::ShowErrorLine(int worker, const std::string& line) {
  err_->Write(worker, line);
  return true;
}

void ProgramWorkers::OnExit(int worker, const ProcessExit& exit) {
  ++ends_[worker].starts;
  ends_[worker].exit = exit;
}

}  // namespace nereus
