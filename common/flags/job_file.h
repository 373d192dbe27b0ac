#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/protocol/job_spec.h"

namespace nereus {

// A job file sets options of a job, one in each line. An option has the name of
// its flag without "--". A '#' at the start of a line, or after a blank, begins
// a comment:
//
//   # Two machines, each with a server and four workers.
//   workers = 8
//   servers = 2
//   learning-rate = 0.02

// A line of such a file.
struct OptionLine {
  int number = 0;  // Number of the line, from 1.
  std::string name;
  std::string value;
};

// Returns the lines of `text` that set something. Errors: kInvalidArgument,
// with the number of the line: it is not NAME = VALUE, or a name is set twice.
absl::StatusOr<std::vector<OptionLine>> ParseOptionLines(
    absl::string_view text);

// Sets the options of the job file `text` in `spec`, and returns the names of
// these options. Errors: kInvalidArgument, with the number of the line: an
// unknown option, or a bad value; those of ParseOptionLines. After an error,
// `spec` may have some of the values.
absl::StatusOr<std::vector<std::string>> ParseJobText(absl::string_view text,
                                                      JobSpec& spec);

// Reads the file `path` and parses it as ParseJobText does. Errors: those of
// ParseJobText, with the path; those of ReadTextFile.
absl::StatusOr<std::vector<std::string>> ReadJobFile(const std::string& path,
                                                     JobSpec& spec);

// Returns the text of a job file with all options of `spec` that have an
// effect.
std::string JobText(const JobSpec& spec);

}  // namespace nereus
