// Command `trace`: records what all members of a running job do in some steps,
// and writes it to a file for Perfetto and for `nereusctl explain`.

#include <unistd.h>

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "common/rpc/admin_client.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"
#include "server/admin/progress_display.h"
#include "server/admin/trace_archive.h"

namespace nereus {
namespace {

// Parses "10" (the next ten steps) or "100:110" (steps 100 to 109).
absl::Status ParseSteps(const std::string& text, TraceQuestion& question) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t end = 0;
  bool is_good = false;
  if (parts.size() == 1) {
    is_good = absl::SimpleAtoi(parts[0], &question.steps);
  } else if (parts.size() == 2 &&
             absl::SimpleAtoi(parts[0], &question.first_step) &&
             absl::SimpleAtoi(parts[1], &end)) {
    is_good = question.first_step >= 0 && end > question.first_step;
    if (is_good) question.steps = end - question.first_step;
  }
  if (is_good && question.steps >= 1 && question.steps <= kTraceStepsMax) {
    return absl::OkStatus();
  }
  return InvalidArgumentError(
      "--steps=", text, ": must be a number of steps from 1 to ",
      kTraceStepsMax, ", or FIRST:END, where END is the step after the last");
}

class TraceCommand final : public Command {
 public:
  TraceCommand()
      : Command("trace",
                "Records what all members of a running job do in some steps, "
                "for Perfetto and for `nereusctl explain`") {}

 private:
  void AddFlags(CLI::App& app) override {
    AddCoordinatorFlags(app, server_, timeout_seconds_);
    AddFlag(app, "steps", steps_,
            "number of the next steps to record, or FIRST:END for steps that "
            "are still to come, without END");
    AddFlag(app, "out", out_,
            "file to write: a TAR archive that "
            "ui.perfetto.dev opens");
    AddNumber(
        app, "max-spans", question_.spans_max, 1, kTraceSpansMax,
        "number of spans that a member keeps at most; each takes 80 bytes "
        "of its memory");
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out, std::ostream& err) override {
    NEREUS_TRY(ParseSteps(steps_, question_));
    ProgressDisplay progress(&err, isatty(STDERR_FILENO) != 0);
    absl::StatusOr<JobTrace> trace =
        FetchTrace(server_, question_, absl::Seconds(timeout_seconds_),
                   [&](const JobTrace& begun, int64_t done) {
                     Show(begun, done, progress);
                   });
    progress.Clear();
    if (absl::IsDeadlineExceeded(trace.status())) {
      return DeadlineExceededError(
          trace.status().message(),
          ": the steps were not done within --timeout=", timeout_seconds_,
          " s. Trace fewer steps, or wait longer");
    }
    NEREUS_TRY(trace.status());
    NEREUS_TRY(WriteTraceArchive(out_, *trace));
    Report(*trace, out, err);
    return kExitDone;
  }

  // Shows how far the job is.
  static void Show(const JobTrace& trace, int64_t done,
                   ProgressDisplay& progress) {
    std::string stage = "waiting for the first of them";
    if (done >= trace.last_step) {
      stage = "collecting the spans";
    } else if (done >= trace.first_step) {
      stage = absl::StrCat("step ", done, " is done");
    }
    progress.Show(absl::StrCat("tracing steps ", trace.first_step, " to ",
                               trace.last_step, " of ", trace.members.size(),
                               " members: ", stage),
                  SteadyNow());
  }

  // Says what was written, and what is missing.
  void Report(const JobTrace& trace, std::ostream& out,
              std::ostream& err) const {
    int64_t spans = 0;
    int64_t lost = 0;
    nlohmann::ordered_json cut_off = nlohmann::ordered_json::array();
    for (const MemberTrace& member : trace.members) {
      spans += static_cast<int64_t>(member.spans.size());
      lost += member.lost;
      if (member.clock.empty()) cut_off.push_back(member.name);
    }
    if (json_) {
      out << FormatJson({{"file", out_},
                         {"first_step", trace.first_step},
                         {"last_step", trace.last_step},
                         {"members", trace.members.size()},
                         {"spans", spans},
                         {"spans_lost", lost},
                         {"members_without_spans", cut_off}})
          << "\n";
    } else {
      out << out_ << ": steps " << trace.first_step << " to " << trace.last_step
          << ", " << trace.members.size() << " members, " << spans
          << " spans; ui.perfetto.dev opens it, and `nereusctl "
          << "explain " << out_ << "` says what limits the job\n";
    }
    for (const auto& name : cut_off) {
      err << name.get<std::string>()
          << " has no spans in the file: it has left, or is lost\n";
    }
    if (lost > 0) {
      err << lost << " spans were not kept: trace fewer steps, or give a "
          << "larger --max-spans than " << question_.spans_max << "\n";
    }
  }

  std::string server_;              // --server
  double timeout_seconds_ = 120.0;  // --timeout
  std::string steps_ = "10";        // --steps
  std::string out_ = "trace.tar";   // --out
  bool json_ = false;               // --json
  TraceQuestion question_;
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() {
  return std::make_unique<TraceCommand>();
}

}  // namespace nereus
