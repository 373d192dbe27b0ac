#include "common/base/exit_codes.h"

namespace nereus {

int ExitCodeOf(const absl::Status& outcome) {
  switch (outcome.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kOutOfRange:  // The job was finished before.
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kAborted:
      return kExitJobFailed;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
      return kExitRefused;
    case absl::StatusCode::kDataLoss:
      return kExitJobLost;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
      return kExitAgain;
    default:
      return kExitFailed;
  }
}

}  // namespace nereus
