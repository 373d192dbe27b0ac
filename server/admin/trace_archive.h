#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/trace.h"

namespace nereus {

// File of a trace: a TAR archive (POSIX.1-1988, ustar) that Perfetto opens as
// it is. It has two members:
//
//   perfetto_manifest.json  the manifest: attributes of the trace, among them
//                           the offset of each member's clock from the
//                           coordinator's, and its largest error
//   job.json                FormatTraceJson
//
// Functions that write or read the file. Errors of WriteTraceArchive:
// kUnavailable, the file cannot be written. Errors of ReadTraceArchive:
// kUnavailable, the file cannot be read; kDataLoss, it is no trace. The file
// may be hostile.
absl::Status WriteTraceArchive(const std::string& path, const JobTrace& trace);
absl::StatusOr<JobTrace> ReadTraceArchive(const std::string& path);

}  // namespace nereus
