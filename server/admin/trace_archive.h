#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/trace.h"

namespace nereus {

// File of a trace: a TAR archive (POSIX.1-1988, ustar) that Perfetto opens as
// it is. It has two files:
//
//   perfetto_manifest.json  the manifest: attributes of the trace, among them
//                           for each member what to add to its clock to get the
//                           coordinator's at the end of the trace, and the
//                           largest error
//   job.json                FormatTraceJson
//
// Functions that write or read the file. Errors of WriteTraceArchive:
// kUnavailable, the file cannot be written. Errors of ReadTraceArchive:
// kUnavailable, the file cannot be read; kDataLoss, it is no trace. The file
// may be hostile.
absl::Status WriteTraceArchive(const std::string& path, const JobTrace& trace);
absl::StatusOr<JobTrace> ReadTraceArchive(const std::string& path);

}  // namespace nereus
