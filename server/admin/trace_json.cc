#include "server/admin/trace_json.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "common/base/json_fields.h"
#include "common/messages/trace_messages.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Threads of a process in the trace.
constexpr int kCallerThread = 1;
constexpr int kDriverThread = 2;
constexpr int kGpuThread = 3;
constexpr int kThreads = 3;
constexpr const char* kThreadNames[] = {"", "caller", "driver", "GPU"};

// Number of the first server's process, minus one.
constexpr int64_t kServerProcesses = kRanksMax;

int64_t ProcessOf(PeerId member) {
  return 1 + member.rank + (member.role == Role::kShard ? kServerProcesses : 0);
}

int ThreadOf(SpanKind kind) {
  if (kind <= SpanKind::kWait) return kCallerThread;
  return kind >= SpanKind::kCompute ? kGpuThread : kDriverThread;
}

// Layer and round of a span. Spans of one gradient have the same.
using LayerRound = std::pair<int32_t, int64_t>;

// Returns the spans in the order of their begins.
std::vector<const Span*> ByTime(const std::vector<Span>& spans) {
  std::vector<const Span*> sorted;
  for (const Span& span : spans) sorted.push_back(&span);
  absl::c_stable_sort(
      sorted, [](const Span* a, const Span* b) { return a->begin < b->begin; });
  return sorted;
}

// Returns the first span that ends at `time` or later; null if there is none.
// `spans` are in the order of time and do not overlap.
const Span* FirstAfter(const std::vector<const Span*>& spans, absl::Time time) {
  const auto found = absl::c_partition_point(
      spans, [=](const Span* span) { return span->end < time; });
  return found == spans.end() ? nullptr : *found;
}

// Writer of the events of one trace.
class Writer {
 public:
  explicit Writer(const JobTrace& trace);

  std::string Take() && { return std::move(text_); }

 private:
  // Writes the events of one member.
  void Write(const MemberTrace& member);
  void WriteName(int64_t process, int thread, absl::string_view what,
                 const std::string& name);
  void WriteSpan(const MemberTrace& member, const Span& span);
  // Writes the arrows between the caller and the driver of a worker.
  void WriteLocalArrows(const MemberTrace& member);
  // Writes the begin ("s") or the end ("f") of an arrow, within a span.
  void WriteArrow(char phase, uint64_t id, const MemberTrace& member,
                  const Span& span);
  void WriteHead(char phase, const MemberTrace& member, const Span& span,
                 absl::Time at);
  // Returns the layer's name, or "".
  std::string NameOf(const Span& span) const;
  // Returns the text of a span in the trace: "send contribution fc1".
  std::string TitleOf(const Span& span) const;

  const JobTrace& trace_;
  // Flows of frames that were sent, and of frames that were received.
  std::set<uint64_t> sent_;
  std::set<uint64_t> received_;
  uint64_t arrows_ = 0;  // Number of arrows within members.
  std::string text_;
};

Writer::Writer(const JobTrace& trace) : trace_(trace) {
  for (const MemberTrace& member : trace.members) {
    for (const Span& span : member.spans) {
      if (span.kind == SpanKind::kSend) sent_.insert(span.flow);
      if (span.kind == SpanKind::kFrame) received_.insert(span.flow);
    }
  }
  absl::StrAppend(
      &text_, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"nereus\": \"",
      absl::Base64Escape(FormatTraceFacts(trace)), "\"}, \"traceEvents\": [\n");
  for (const MemberTrace& member : trace.members) Write(member);
  // The format allows no comma after the last event.
  if (text_.ends_with(",\n")) text_.erase(text_.size() - 2);
  text_ += "\n]}\n";
}

void Writer::Write(const MemberTrace& member) {
  const int64_t process = ProcessOf(member.member);
  WriteName(process, 0, "process_name", member.name);
  for (int thread = kCallerThread; thread <= kThreads; ++thread) {
    WriteName(process, thread, "thread_name", kThreadNames[thread]);
  }
  for (const Span& span : member.spans) WriteSpan(member, span);
  for (const Span& span : member.spans) {
    if (span.kind == SpanKind::kSend && received_.contains(span.flow)) {
      WriteArrow('s', span.flow, member, span);
    } else if (span.kind == SpanKind::kFrame && sent_.contains(span.flow)) {
      WriteArrow('f', span.flow, member, span);
    }
  }
  WriteLocalArrows(member);
}

void Writer::WriteName(int64_t process, int thread, absl::string_view what,
                       const std::string& name) {
  const std::string quoted =
      Json(name).dump(-1, ' ', true, Json::error_handler_t::replace);
  absl::StrAppend(&text_, "{\"ph\": \"M\", \"pid\": ", process,
                  ", \"tid\": ", thread, ", \"name\": \"", what,
                  "\", \"args\": {\"name\": ", quoted, "}},\n");
}

std::string Writer::NameOf(const Span& span) const {
  const auto layer = static_cast<size_t>(span.layer);
  return span.layer >= 0 && layer < trace_.job->layers.size()
             ? trace_.job->layers[layer].name
             : "";
}

std::string Writer::TitleOf(const Span& span) const {
  std::string title(SpanKindName(span.kind));
  if (span.kind == SpanKind::kFrame)
    title = std::string(FrameKindName(span.frame));
  if (span.kind == SpanKind::kSend) {
    absl::StrAppend(&title, " ", FrameKindName(span.frame));
  }
  const std::string name = NameOf(span);
  return name.empty() ? title : absl::StrCat(title, " ", name);
}

void Writer::WriteHead(char phase, const MemberTrace& member, const Span& span,
                       absl::Time at) {
  const absl::Time on_clock = OnCoordinatorClock(at, member.clock);
  absl::StrAppendFormat(
      &text_, "{\"ph\": \"%c\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f", phase,
      ProcessOf(member.member), ThreadOf(span.kind),
      absl::ToDoubleMicroseconds(on_clock - absl::UnixEpoch()));
}

void Writer::WriteSpan(const MemberTrace& member, const Span& span) {
  WriteHead('X', member, span, span.begin);
  absl::StrAppendFormat(
      &text_, ", \"dur\": %.3f, \"cat\": \"%s\", \"name\": %s, \"args\": {",
      absl::ToDoubleMicroseconds(span.end - span.begin),
      SpanKindName(span.kind), Json(TitleOf(span)).dump());
  absl::StrAppend(&text_, "\"step\": ", span.round, ", \"layer\": ", span.layer,
                  ", \"chunk\": ", span.chunk);
  if (span.peer.has_value()) {
    absl::StrAppend(&text_, ", \"peer\": \"", PeerName(*span.peer),
                    "\", \"bytes\": ", span.bytes);
  }
  text_ += "}},\n";
}

// A frame can arrive before the span of its sending ends, so its arrow leaves
// at the span's begin.
void Writer::WriteArrow(char phase, uint64_t id, const MemberTrace& member,
                        const Span& span) {
  const absl::Duration within = span.kind == SpanKind::kSend
                                    ? absl::ZeroDuration()
                                    : (span.end - span.begin) / 2;
  WriteHead(phase, member, span, span.begin + within);
  absl::StrAppendFormat(&text_,
                        ", \"cat\": \"gradient\", \"name\": \"gradient\", "
                        "\"id\": \"0x%x\"%s},\n",
                        id, phase == 'f' ? ", \"bp\": \"e\"" : "");
}

void Writer::WriteLocalArrows(const MemberTrace& member) {
  // Spans by time: of the caller and of the driver.
  std::map<LayerRound, const Span*> backward, events;
  std::map<int64_t, const Span*> forward;
  std::map<int32_t, std::vector<const Span*>> waits;
  std::vector<const Span*> forwards;
  for (const Span* const span : ByTime(member.spans)) {
    const LayerRound of(span->layer, span->round);
    // The first one of several spans counts.
    if (span->kind == SpanKind::kBackward) backward.try_emplace(of, span);
    if (span->kind == SpanKind::kEvent) events.try_emplace(of, span);
    if (span->kind == SpanKind::kWait) waits[span->layer].push_back(span);
    if (span->kind != SpanKind::kForward) continue;
    forward.try_emplace(span->round, span);
    forwards.push_back(span);
  }
  const auto draw = [&](const Span* from, const Span* to) {
    if (from == nullptr || to == nullptr) return;
    const uint64_t id =
        static_cast<uint64_t>(ProcessOf(member.member)) << 40 | ++arrows_;
    WriteArrow('s', id, member, *from);
    WriteArrow('f', id, member, *to);
  };
  for (const auto& [of, event] : events) {
    if (of.first < 0) continue;
    // The forward pass ends with the gradient of the layer pushed first.
    const auto found = backward.find(of);
    const auto first = forward.find(of.second);
    draw(found != backward.end()  ? found->second
         : first != forward.end() ? first->second
                                  : nullptr,
         event);
  }
  for (const Span& span : member.spans) {
    if (span.kind != SpanKind::kDone) continue;
    const Span* const wait = FirstAfter(waits[span.layer], span.begin);
    draw(&span, wait != nullptr ? wait : FirstAfter(forwards, span.begin));
  }
}

// Returns the kind with this name; nothing if there is none.
std::optional<SpanKind> KindOf(const std::string& name) {
  for (int kind = kSpanKindMin; kind <= kSpanKindMax; ++kind) {
    if (SpanKindName(static_cast<SpanKind>(kind)) == name) {
      return static_cast<SpanKind>(kind);
    }
  }
  return std::nullopt;
}

// Returns a number of an event; nothing if it has none with this name, or one
// that no trace of ours has.
std::optional<double> NumberIn(const Json& event, const char* name) {
  constexpr double kMax = 1e15;
  const auto found = event.find(name);
  if (found == event.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  if (value >= -1 && value <= kMax) return value;
  return std::nullopt;
}

// Reads a span; nothing if the event is none.
std::optional<std::pair<int64_t, Span>> ReadSpan(const Json& event) {
  if (!event.is_object() || event.value("ph", Json()) != "X") {
    return std::nullopt;
  }
  const auto category = event.find("cat");
  const auto arguments = event.find("args");
  if (category == event.end() || !category->is_string() ||
      arguments == event.end() || !arguments->is_object()) {
    return std::nullopt;
  }
  const std::optional<SpanKind> kind = KindOf(category->get<std::string>());
  const auto process = NumberIn(event, "pid");
  const auto begin = NumberIn(event, "ts");
  const auto duration = NumberIn(event, "dur");
  const auto step = NumberIn(*arguments, "step");
  const auto layer = NumberIn(*arguments, "layer");
  if (!kind || !process || !begin || !duration || !step || !layer ||
      *layer > kLayersMax || *duration < 0) {
    return std::nullopt;
  }
  Span span;
  span.kind = *kind;
  span.round = static_cast<int64_t>(*step);
  span.layer = static_cast<int32_t>(*layer);
  span.begin = absl::UnixEpoch() + absl::Microseconds(*begin);
  span.end = span.begin + absl::Microseconds(*duration);
  return std::pair(static_cast<int64_t>(*process), span);
}

}  // namespace

std::string FormatTraceJson(const JobTrace& trace) {
  return Writer(trace).Take();
}

absl::StatusOr<JobTrace> ParseTraceJson(absl::string_view text) {
  const Json json = ParseJson(text);
  const Json* facts = nullptr;
  if (json.is_object() && json.contains("otherData") &&
      json["otherData"].is_object() && json["otherData"].contains("nereus")) {
    facts = &json["otherData"]["nereus"];
  }
  std::string bytes;
  if (facts == nullptr || !facts->is_string() ||
      !absl::Base64Unescape(facts->get<std::string>(), &bytes)) {
    return DataLossError("is no trace of `nereusctl trace`");
  }
  absl::StatusOr<JobTrace> trace = ParseTraceFacts(bytes);
  if (!trace.ok()) return DataLossError(trace.status().message());
  std::map<int64_t, MemberTrace*> members;
  for (MemberTrace& member : trace->members) {
    members[ProcessOf(member.member)] = &member;
  }
  const auto events = json.find("traceEvents");
  if (events == json.end() || !events->is_array()) {
    return DataLossError("has no traceEvents");
  }
  for (const Json& event : *events) {
    const auto read = ReadSpan(event);
    if (!read.has_value()) continue;
    const auto member = members.find(read->first);
    if (member != members.end()) member->second->spans.push_back(read->second);
  }
  return trace;
}

}  // namespace nereus
