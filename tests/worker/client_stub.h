#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker/public/client.h"

namespace nereus {

// Client without a job. A test overrides the calls that its subject makes; all
// other calls fail.
class ClientStub : public Client {
 public:
  const JobTraits& traits() const override { return job; }
  absl::Status AwaitJoined(absl::Duration, Stream) override { return Fail(); }
  absl::StatusOr<StepInfo> BeginStep(absl::Duration, Stream) override {
    return Fail();
  }
  absl::Status Push(int, int64_t, absl::Span<float>, Stream) override {
    return Fail();
  }
  absl::Status PushFactors(int, int64_t, const Factors&, absl::Span<float>,
                           Stream) override {
    return Fail();
  }
  absl::Status SetFactorRows(absl::Span<const int64_t>) override {
    return Fail();
  }
  absl::StatusOr<int64_t> factor_rows(int) const override { return 0; }
  absl::Status Wait(int, int64_t, absl::Duration, Stream) override {
    return Fail();
  }
  absl::Status WaitForward(int, absl::Duration, Stream) override {
    return Fail();
  }
  absl::Status WaitAll(int64_t, absl::Duration, Stream) override {
    return Fail();
  }
  absl::StatusOr<absl::Span<const float>> Mean(int) const override {
    return Fail();
  }
  bool Skipped(int64_t) const override { return job.may_skip; }
  absl::Status Checkpoint() override { return Fail(); }
  absl::StatusOr<std::vector<std::string>> Gather(
      absl::string_view, absl::Duration) const override {
    return Fail();
  }
  ClientReport Report() const override { return {}; }
  absl::Status Abort(absl::string_view) override { return Fail(); }

  JobTraits job;

 private:
  static absl::Status Fail() {
    return UnimplementedError("the subject of this test does not call this");
  }
  absl::Status LeaveJob(bool, absl::Duration, Stream) override {
    return absl::OkStatus();
  }
};

}  // namespace nereus
