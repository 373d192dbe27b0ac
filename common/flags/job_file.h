#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/job_spec.h"

namespace nereus {

// A job file sets options of a job by the names of their flags, one in a line:
//
//   # Two machines, each with a server and four workers.
//   workers = 8
//   servers = 2
//   learning-rate = 0.02

// Sets in `spec` what the file says, and returns the names of these options.
// Errors: kInvalidArgument, with the line: an unknown option, a value that is
// none of its option's, a line that is not "name = value", an option twice.
absl::StatusOr<std::vector<std::string>> ParseJobText(absl::string_view text,
                                                      JobSpec& spec);

// Reads the file `path` as ParseJobText reads a text. Errors: in addition
// kUnavailable, the file cannot be read.
absl::StatusOr<std::vector<std::string>> ReadJobFile(const std::string& path,
                                                     JobSpec& spec);

// The options of `spec` that count, as a job file.
std::string JobText(const JobSpec& spec);

}  // namespace nereus
