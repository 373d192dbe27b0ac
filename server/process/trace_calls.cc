#include "server/process/trace_calls.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/mutex.h"
#include "common/messages/job_messages.h"
#include "common/messages/trace_messages.h"
#include "common/protocol/trace.h"
#include "common/rpc/rpc_status.h"

namespace nereus {
namespace {

// Longest wait for an answer of a member.
constexpr absl::Duration kPatience = absl::Seconds(10);

// Number of replies that may wait to be written when the next member is asked.
constexpr size_t kQueueMax = 4;

// Returns the last round that all workers have done. A worker that has left has
// done its last step.
int64_t DoneRound(const Coordinator& coordinator) {
  int64_t done = kStepMax;
  for (const MemberRecord& member : coordinator.roster().members()) {
    if (!member.is_worker() || !member.admitted) continue;
    done = std::min(done, member.last_step.value_or(member.heartbeat.round));
  }
  return done == kStepMax ? kInitialRound : done;
}

// Returns an error if a worker has begun the step.
absl::Status CheckFirst(int64_t step, const Coordinator& coordinator) {
  const int64_t begun = coordinator.epochs().BegunStep();
  if (step > begun) return absl::OkStatus();
  return FailedPreconditionError(
      "step ", step, " has begun already: the job is in step ", begun);
}

}  // namespace

// The call of one trace. One write is under way at a time. gRPC calls OnDone
// last of all, once the call was finished.
class TraceCall final : public TraceCalls::Reactor {
 public:
  explicit TraceCall(std::function<void(TraceCall*)> cancelled)
      : cancelled_(std::move(cancelled)) {}

  // Queues a reply, unless the call is ending.
  void Write(v1::TraceReply reply) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (finishing_) return;
    queue_.push_back(std::move(reply));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // Finishes the call when all queued replies have been written.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      if (finishing_) return;
      finishing_ = true;
      status_ = status;
      if (!queue_.empty()) return;
    }
    // This comes last, without the lock: gRPC may delete this meanwhile.
    Finish(ToGrpcStatus(status));
  }

  // Number of replies that wait to be written.
  size_t queued() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return queue_.size();
  }

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (!ok) queue_.clear();  // The call is broken.
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finishing_) {
      Finish(ToGrpcStatus(status_));
    }
  }

  void OnCancel() override { cancelled_(this); }
  void OnDone() override { delete this; }

  const std::function<void(TraceCall*)> cancelled_;
  Mutex mu_;
  // Replies yet to write; the first one is being written.
  std::deque<v1::TraceReply> queue_ ABSL_GUARDED_BY(mu_);
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;  // End was called.
  absl::Status status_ ABSL_GUARDED_BY(mu_);     // Status to finish with.
};

TraceCalls::Reactor* TraceCalls::Open(const v1::TraceRequest& request,
                                      const Coordinator& coordinator,
                                      absl::Time now) {
  auto* call = new TraceCall(cancelled_);
  absl::Status begun;
  if (stopping_) {
    begun = UnavailableError("shutting down");
  } else if (trace_.has_value()) {
    begun = FailedPreconditionError(
        "the job is being traced already: wait for the end of that trace");
  } else {
    begun = Begin(request, coordinator, now, call);
  }
  if (!begun.ok()) call->End(begun);
  return call;
}

absl::Status TraceCalls::Begin(const v1::TraceRequest& request,
                               const Coordinator& coordinator, absl::Time now,
                               TraceCall* call) {
  if (request.steps() < 1 || request.steps() > kTraceStepsMax ||
      request.spans_max() < 1 || request.spans_max() > kTraceSpansMax ||
      request.first_step() < -1 || request.first_step() > kStepMax / 2) {
    return InvalidArgumentError(
        "the request is for ", request.steps(), " steps from ",
        request.first_step(), " with ", request.spans_max(),
        " spans of each member: there can be ", kTraceStepsMax, " steps and ",
        kTraceSpansMax, " spans");
  }
  if (coordinator.state() != JobState::kRunning) {
    return FailedPreconditionError("the job is ",
                                   JobStateName(coordinator.state()),
                                   "; only a running job can be traced");
  }
  Trace trace;
  trace.call = call;
  trace.order = {DrawUniqueId(), 0, kStepMax, request.spans_max()};
  trace.steps = request.steps();
  trace.wanted_first = request.first_step();
  trace.job_name = coordinator.Status(now).job;
  trace.ordered_at = now;
  if (trace.wanted_first >= 0) {
    NEREUS_TRY(CheckFirst(trace.wanted_first, coordinator));
    trace.order.first_step = trace.wanted_first;
  }
  for (const MemberRecord& member : coordinator.roster().members()) {
    if (!member.admitted || member.has_left()) continue;
    if (!member.session.has_value()) continue;
    trace.members.emplace_back(*member.session, member.id);
  }
  absl::c_sort(trace.members, [](const auto& a, const auto& b) {
    return a.second < b.second;
  });
  for (const auto& [session, member] : trace.members) {
    send_(session, trace.order);
  }
  trace_ = std::move(trace);
  return absl::OkStatus();
}

void TraceCalls::OnMessage(SessionId session, const MemberMessage& message,
                           const Coordinator& coordinator, absl::Time now) {
  if (!trace_.has_value()) return;
  const bool is_traced = absl::c_any_of(
      trace_->members,
      [=](const auto& member) { return member.first == session; });
  if (!is_traced) return;
  if (const auto* question = std::get_if<ClockQuestion>(&message)) {
    OnQuestion(session, *question);
  } else if (const auto* part = std::get_if<TracePart>(&message)) {
    OnPart(session, *part, now);
  } else if (std::holds_alternative<Heartbeat>(message)) {
    OnHeartbeat(session, coordinator, now);
  }
}

void TraceCalls::OnQuestion(SessionId session, const ClockQuestion& question) {
  if (question.trace != trace_->order.trace) return;
  send_(session, ClockAnswer{question.trace, question.asked, SteadyNow()});
  trace_->recording.insert(session);
}

// Chooses the steps at once: until members hear of them, they record all steps.
void TraceCalls::OnHeartbeat(SessionId session, const Coordinator& coordinator,
                             absl::Time now) {
  if (trace_->has_steps) return;
  const bool all_record =
      absl::c_all_of(trace_->members, [this](const auto& member) {
        return trace_->recording.contains(member.first);
      });
  if (!all_record) return;
  trace_->ready.insert(session);
  if (AllRecord(now)) ChooseSteps(coordinator);
}

bool TraceCalls::AllRecord(absl::Time now) const {
  if (now - trace_->ordered_at > kPatience) return true;
  return absl::c_all_of(trace_->members, [this](const auto& member) {
    return trace_->ready.contains(member.first);
  });
}

void TraceCalls::ChooseSteps(const Coordinator& coordinator) {
  const Epochs& epochs = coordinator.epochs();
  int64_t first = trace_->wanted_first;
  if (first == -1) {
    first = epochs.BegunStep() + 1;
  } else if (const absl::Status good = CheckFirst(first, coordinator);
             !good.ok()) {
    return End(good);
  }
  trace_->has_steps = true;
  trace_->order.first_step = first;
  trace_->order.last_step = first + trace_->steps - 1;
  JobTrace facts;
  facts.job_name = trace_->job_name;
  facts.job = epochs.job();
  const std::optional<KnownTimes>& times = epochs.in_force().times;
  if (times.has_value()) facts.measured = times->measured;
  facts.first_step = first;
  facts.last_step = trace_->order.last_step;
  for (const auto& [session, id] : trace_->members) {
    send_(session, trace_->order);
    const MemberRecord* const member = coordinator.roster().Find(id);
    if (member == nullptr) continue;  // Its session is about to end.
    MemberTrace& added = facts.members.emplace_back();
    added.member = id;
    added.name = member->Name();
    added.host = member->host >= 0 ? absl::StrCat("host ", member->host)
                                   : absl::StrCat("host of ", member->Name());
  }
  v1::TraceReply reply;
  *reply.mutable_begun() = ToProto(facts, epochs.in_force().explanations);
  trace_->call->Write(std::move(reply));
}

void TraceCalls::OnPart(SessionId session, const TracePart& part,
                        absl::Time now) {
  if (part.trace != trace_->order.trace || !trace_->HasAsked(session)) {
    return;  // The part is of an earlier trace, or came too late.
  }
  v1::TraceReply reply;
  v1::TraceReply::MemberSpans* const spans = reply.mutable_spans();
  *spans->mutable_member() = ToProto(trace_->members.front().second);
  Encode(part, spans->mutable_part());
  trace_->call->Write(std::move(reply));
  trace_->asked_at = now;
  trace_->spans += std::ssize(part.spans);
  // A member that sends more than it may, or parts that are not full, is cut
  // off.
  const bool is_bad = trace_->spans > trace_->order.spans_max ||
                      std::ssize(part.spans) < kTracePartSpansMax;
  if (part.is_last || is_bad) {
    DropFirst();
    AskNext(now);
  }
}

void TraceCalls::OnSessionEnd(SessionId session, absl::Time now) {
  if (!trace_.has_value()) return;
  if (trace_->HasAsked(session)) {
    DropFirst();
    return AskNext(now);
  }
  std::erase_if(trace_->members,
                [=](const auto& member) { return member.first == session; });
}

void TraceCalls::OnTick(const Coordinator& coordinator, absl::Time now) {
  if (!trace_.has_value()) return;
  if (trace_->is_done) {
    if (trace_->has_asked() && now - trace_->asked_at > kPatience) DropFirst();
    if (!trace_->has_asked()) AskNext(now);
    return;
  }
  if (coordinator.over()) {
    return End(FailedPreconditionError(
        "the job was over before the members could send their spans: trace "
        "earlier steps"));
  }
  if (!trace_->has_steps) {
    if (AllRecord(now)) ChooseSteps(coordinator);
    return;
  }
  const int64_t done = DoneRound(coordinator);
  if (done > trace_->told_round && trace_->call->queued() < kQueueMax) {
    trace_->told_round = done;
    v1::TraceReply reply;
    reply.set_done_round(done);
    trace_->call->Write(std::move(reply));
  }
  if (done < trace_->order.last_step) return;
  trace_->is_done = true;
  AskNext(now);
}

void TraceCalls::DropFirst() {
  trace_->members.erase(trace_->members.begin());
  trace_->asked_at = absl::InfiniteFuture();
  trace_->spans = 0;
}

void TraceCalls::AskNext(absl::Time now) {
  if (trace_->members.empty()) return End(absl::OkStatus());
  if (trace_->call->queued() >= kQueueMax) return;  // OnTick asks later.
  trace_->asked_at = now;
  send_(trace_->members.front().first, TraceEnd{trace_->order.trace});
}

void TraceCalls::End(const absl::Status& status) {
  for (const auto& [session, member] : trace_->members) {
    send_(session, TraceEnd{trace_->order.trace, /*drops=*/true});
  }
  trace_->call->End(status);
  trace_.reset();
}

void TraceCalls::EndAll() {
  stopping_ = true;
  if (trace_.has_value()) End(UnavailableError("shutting down"));
}

void TraceCalls::Forget(TraceCall* call) {
  if (trace_.has_value() && trace_->call == call) {
    End(absl::CancelledError("the caller no longer waits"));
  }
}

}  // namespace nereus
