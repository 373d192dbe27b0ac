#include "server/coordinator/lobby_gatherings.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Limit in bytes of all values of an answer together. The coordinator sends a
// copy of the answer to each process.
constexpr size_t kAnswerBytesMax = size_t{2} << 20;

// Time between two notices that tell a waiting process which processes are
// missing, and before the first notice.
const absl::Duration kNoticeInterval = absl::Seconds(5);
// Largest number of processes that a notice names.
constexpr size_t kNamesMax = 8;

}  // namespace

absl::Status LobbyGatherings::TooOftenError(int32_t number) const {
  return FailedPreconditionError(
      "process ", number, " gathers for time ", answers_.size() + 1,
      " before it joins the job, and all ", count_,
      " workers have joined after they had gathered ", answers_.size(),
      " times: all processes must gather equally often before they join");
}

void LobbyGatherings::OnGather(SessionId session, const LobbyGather& gather,
                               bool runs, absl::Time now,
                               CoordinatorOutbox& out) {
  const auto known = numbers_.find(session);
  if (known != numbers_.end() && known->second != gather.number) {
    return Refuse(
        session,
        InvalidArgumentError("a session of process ", known->second,
                             " has a value of process ", gather.number),
        out);
  }
  Process& process = processes_[gather.number];
  const std::optional<SessionId> before = process.session;
  if (before.has_value() && before != session) {
    if (process.incarnation == gather.incarnation) {
      out.push_back(EndSession{*before});  // The process knows that it broke.
    } else {
      Refuse(*before,
             AlreadyExistsError("another process says that it is process ",
                                gather.number, " of ", count_,
                                ": the launcher gives each process a number "
                                "of its own (NEREUS_RANK)"),
             out);
    }
  }
  process.incarnation = gather.incarnation;
  Attach(gather.number, session);
  const auto next = static_cast<int32_t>(answers_.size());
  if (gather.index < next) {
    out.push_back(SendToMember{session, answers_[gather.index]});
  } else if (gather.index > next) {
    Refuse(
        session,
        DataLossError("process ", gather.number, " has gathered ", gather.index,
                      " times before it joins the job, and this coordinator "
                      "knows of ",
                      next,
                      " times: it was started without --state=FILE, or with "
                      "another one. Start all processes again"),
        out);
  } else if (runs) {
    Refuse(session, TooOftenError(gather.number), out);
  } else {
    if (!process.value.has_value()) process.noticed_at = now;
    NoteValue(process, gather.value);
  }
}

void LobbyGatherings::Attach(int32_t number, SessionId session) {
  Process& process = processes_[number];
  if (process.session.has_value()) numbers_.erase(*process.session);
  process.session = session;
  numbers_[session] = number;
}

void LobbyGatherings::NoteValue(Process& process, const std::string& value) {
  if (process.value.has_value()) {
    bytes_ -= process.bytes;
  } else {
    ++here_count_;
  }
  bytes_ += value.size();
  most_bytes_ = std::max(most_bytes_, bytes_);
  process.bytes = value.size();
  process.value = most_bytes_ <= kAnswerBytesMax ? value : "";
}

void LobbyGatherings::ClearValues() {
  for (auto& [number, process] : processes_) process.value.reset();
  here_count_ = 0;
  bytes_ = most_bytes_ = 0;
}

void LobbyGatherings::OnSessionEnd(SessionId session) {
  const auto found = numbers_.find(session);
  if (found == numbers_.end()) return;
  processes_[found->second].session.reset();
  numbers_.erase(found);
}

bool LobbyGatherings::Complete() {
  if (here_count_ < count_) return false;
  LobbyGathered answer;
  answer.index = static_cast<int32_t>(answers_.size());
  if (most_bytes_ > kAnswerBytesMax) {
    answer.error =
        absl::StrCat("the values of the ", count_, " processes have ",
                     most_bytes_, " bytes, must be at most ", kAnswerBytesMax);
  } else {
    for (auto& [number, process] : processes_) {
      answer.values.push_back(*std::move(process.value));
    }
  }
  ClearValues();
  answers_.push_back(std::move(answer));
  is_ready_ = true;
  return true;
}

void LobbyGatherings::Send(CoordinatorOutbox& out) {
  if (!std::exchange(is_ready_, false)) return;
  for (const auto& [number, process] : processes_) {
    if (!process.session.has_value()) continue;
    out.push_back(SendToMember{*process.session, answers_.back()});
  }
}

std::string LobbyGatherings::DescribeWait(const MemberList& roster) const {
  std::set<int32_t> joined;
  for (const MemberRecord& member : roster.members()) {
    if (!member.is_worker()) continue;
    joined.insert(member.request.launch_rank.value_or(-1));
  }
  std::vector<std::string> names;
  size_t missing_count = 0;
  for (int32_t number = 0; number < count_; ++number) {
    const auto found = processes_.find(number);
    const bool is_known = found != processes_.end();
    if (is_known && found->second.value.has_value()) continue;
    if (++missing_count > kNamesMax) continue;
    const bool is_gone = is_known && !found->second.session.has_value();
    names.push_back(absl::StrCat(
        number, joined.contains(number) ? " (it has joined the job)"
                : is_gone               ? " (its connection has ended)"
                                        : ""));
  }
  if (missing_count > kNamesMax) {
    names.push_back(absl::StrCat(missing_count - kNamesMax, " others"));
  }
  return absl::StrCat(
      "a gathering before the job begins waits for ",
      missing_count == 1 ? "process " : "the processes ",
      absl::StrJoin(absl::MakeConstSpan(names).first(names.size() - 1), ", "),
      names.size() > 1 ? " and " : "", names.back(), " of ", count_);
}

void LobbyGatherings::SendNotices(const MemberList& roster, absl::Time now,
                                  CoordinatorOutbox& out) {
  std::string text;
  for (auto& [number, process] : processes_) {
    if (!process.value.has_value() || !process.session.has_value() ||
        now - process.noticed_at <= kNoticeInterval) {
      continue;
    }
    process.noticed_at = now;
    if (text.empty()) text = DescribeWait(roster);
    out.push_back(SendToMember{*process.session, Waiting{text}});
  }
}

void LobbyGatherings::Refuse(SessionId session, const absl::Status& why,
                             CoordinatorOutbox& out) {
  OnSessionEnd(session);
  nereus::Refuse(session, why, out);
}

void LobbyGatherings::RefuseWaiting(CoordinatorOutbox& out) {
  for (const auto& [number, process] : processes_) {
    if (!process.value.has_value() || !process.session.has_value()) continue;
    Refuse(*process.session, TooOftenError(number), out);
  }
  ClearValues();
}

void LobbyGatherings::RefuseAll(const absl::Status& why,
                                CoordinatorOutbox& out) {
  for (const auto& [number, process] : processes_) {
    if (process.session.has_value()) Refuse(*process.session, why, out);
  }
  ClearValues();
}

}  // namespace nereus
