// The functions of nereus.h. Each function checks its arguments. A function
// with a client then makes one call on the Client or its ClientEntry.
// Read Run, OnEntry and OnClient first: every function that can fail goes
// through one of these three. So no exception leaves a function, and its error
// is stored for nereus_last_error.

#include "worker/c_api/nereus.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "worker/c_api/binding.h"
#include "worker/c_api/client_table.h"
#include "worker/c_api/lobby_table.h"
#include "worker/c_api/structs.h"
#include "worker/public/client_report.h"
#include "worker/public/gpu.h"

// The first header had no `listen`.
static_assert(offsetof(nereus_client_options, listen) ==
              nereus::kClientOptionsBytesMin);
static_assert(sizeof(nereus_layer) == nereus::kLayerBytesMin);
static_assert(sizeof(nereus_step) == nereus::kStepBytesMin);
static_assert(sizeof(nereus_traits) == nereus::kTraitsBytesMin);
static_assert(sizeof(nereus_factors) == nereus::kFactorsBytesMin);

// The size of a struct must be a multiple of its alignment (CheckedSize in
// structs.cc). A new field that raised the alignment would make the sizes that
// older callers set invalid.
static_assert(alignof(nereus_client_options) == 8);
static_assert(alignof(nereus_layer) == 8);
static_assert(alignof(nereus_step) == 8);
static_assert(alignof(nereus_traits) == 4);
static_assert(alignof(nereus_factors) == 8);

namespace nereus {

// Keeps the last log lines of this process for a caller that asks for them, for
// example to print them in a notebook. If the caller is too slow, the oldest
// lines are lost, and an extra line says how many. Thread-safe.
class LogCollector {
 public:
  struct Line {
    LogLevel level = LogLevel::kInfo;
    std::string text;  // Without a line feed.
  };

  // Sets the number of lines that are kept. If there are more, drops the
  // oldest.
  void SetLinesMax(size_t lines_max) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a line.
  void Add(LogLevel level, const std::string& text) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns all that is left of the oldest line, if there is one, and takes the
  // first `bytes_max` bytes of it: the next call returns the bytes behind them.
  // If all bytes are taken, the next call returns the next line. Without
  // `bytes_max`, takes nothing.
  std::optional<Line> Take(std::optional<size_t> bytes_max)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Drops the oldest lines beyond the limit.
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets rest_ to the line about lost lines, if lines were lost, or else to the
  // oldest line, if there is one.
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  size_t lines_max_ ABSL_GUARDED_BY(mu_) = 0;  // Limit of `lines_`.
  // Line that is being taken, without the bytes that are taken already.
  std::optional<Line> rest_ ABSL_GUARDED_BY(mu_);
  std::deque<Line> lines_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  // Number of lost lines that no line has told of.
  int64_t lost_count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Returns a client's report as one JSON object; docs/c_api.md lists its fields.
std::string ReportJson(const ClientReport& report);

namespace {

// Returns the collector, which is never destroyed: threads may log until the
// process ends.
LogCollector& TheLog() {
  static LogCollector& log = *new LogCollector;
  return log;
}

void CollectLine(LogLevel level, const std::string& text) {
  TheLog().Add(level, text);
}

// Runs the body of a function, and stores its error for nereus_last_error.
// Because of `noexcept`, an exception ends the process. Nereus throws none on
// purpose: one means that the process is out of memory or of threads.
nereus_code Run(absl::FunctionRef<absl::Status()> body) noexcept {
  absl::Status status = CheckNotForked();
  if (status.ok()) status = body();
  return ReturnCode(status);
}

// Returns the error for a handle that is not in the ClientTable.
absl::Status NoClientError(nereus_client* handle) {
  return InvalidArgumentError(handle == nullptr
                                  ? "client is NULL"
                                  : "client is no open client: it was closed, "
                                    "or nereus_client_connect has not "
                                    "returned it");
}

// Runs the body of a function that takes a client, and stores its error for
// nereus_client_error, too. If `needs_joined` is true, a client that has not
// joined is an error.
nereus_code OnEntry(
    nereus_client* handle, bool needs_joined,
    absl::FunctionRef<absl::Status(ClientEntry&)> body) noexcept {
  return Run([&] {
    const std::shared_ptr<ClientEntry> entry = ClientTable::Get().Find(handle);
    if (entry == nullptr) return NoClientError(handle);
    NEREUS_TRY(entry->Begin(needs_joined));
    absl::Status status = body(*entry);
    entry->End(status);
    return status;
  });
}

// Runs the body of a function that takes a client which has joined.
nereus_code OnClient(nereus_client* handle,
                     absl::FunctionRef<absl::Status(Client&)> body) noexcept {
  return OnEntry(handle, /*needs_joined=*/true,
                 [&](ClientEntry& entry) { return body(entry.client()); });
}

// Runs the body of a function that takes a lobby.
nereus_code OnLobby(
    nereus_lobby* handle,
    absl::FunctionRef<absl::Status(LobbyEntry&)> body) noexcept {
  return Run([&] {
    const std::shared_ptr<LobbyEntry> entry = LobbyTable::Get().Find(handle);
    return entry != nullptr
               ? body(*entry)
               : InvalidArgumentError(handle == nullptr
                                          ? "lobby is NULL"
                                          : "lobby is no open lobby: it was "
                                            "closed, or nereus_lobby_enter has "
                                            "not returned it");
  });
}

// ---- Arguments.

// Returns the duration of a timeout argument; a negative one is infinite.
absl::Duration Timeout(int64_t milliseconds) {
  return milliseconds < 0 ? absl::InfiniteDuration()
                          : absl::Milliseconds(milliseconds);
}

Stream StreamOf(void* stream) { return static_cast<Stream>(stream); }

absl::Status CheckNotNull(absl::string_view name, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return InvalidArgumentError(name, " is NULL");
}

// Checks an array of `length` floats. An empty array may be NULL.
absl::Status CheckArray(absl::string_view name, const float* values,
                        int64_t length) {
  if (length < 0 || length > kLayerParametersMax) {
    return InvalidArgumentError("the length of ", name, " is ", length,
                                ", must be 0 to ", kLayerParametersMax);
  }
  return length == 0 ? absl::OkStatus() : CheckNotNull(name, values);
}

template <typename Float>
absl::Span<Float> SpanOf(Float* values, int64_t length) {
  return {values, static_cast<size_t>(length)};
}

// Checks memory of `length` bytes. Empty memory may be NULL.
absl::Status CheckBytes(absl::string_view name, const void* bytes,
                        int64_t length) {
  if (length < 0) {
    return InvalidArgumentError("the length of ", name, " is ", length,
                                ", must not be negative");
  }
  return length == 0 ? absl::OkStatus() : CheckNotNull(name, bytes);
}

// Checks the arguments through which a function returns a text (see "Texts" in
// nereus.h). With a `capacity` of 0, `text` may be NULL.
absl::Status CheckRoom(const char* text, int64_t capacity,
                       const int64_t* length) {
  NEREUS_TRY(CheckNotNull("length", length));
  if (capacity < 0) {
    return InvalidArgumentError("capacity is ", capacity,
                                ", must not be negative");
  }
  return capacity == 0 ? absl::OkStatus() : CheckNotNull("text", text);
}

// Copies at most the first `capacity` - 1 bytes of `in` to `text`, adds a NUL,
// and sets `*length` to the length of all of `in`. With a `capacity` of 0, only
// sets `*length`.
void WriteText(absl::string_view in, char* text, int64_t capacity,
               int64_t* length) {
  *length = static_cast<int64_t>(in.size());
  if (capacity == 0) return;
  const int64_t count = std::min(*length, capacity - 1);
  std::memcpy(text, in.data(), count);
  text[count] = '\0';
}

// Copies at most the first `capacity` bytes of `in` to `out`, and sets
// `*length` to the length of all of `in`.
void WriteBytes(absl::string_view in, void* out, int64_t capacity,
                int64_t* length) {
  *length = static_cast<int64_t>(in.size());
  std::copy_n(in.data(), std::min(*length, capacity), static_cast<char*>(out));
}

// ---- Results.

nereus_step StepOf(const StepInfo& info) {
  nereus_step step = {};
  step.position = info.position;
  step.step = info.step;
  step.workers = info.workers;
  step.local_position = info.local_position;
  step.local_workers = info.local_workers;
  step.loss_scale = info.loss_scale;
  step.contributions_before = info.contributions_before;
  step.went_back = info.went_back ? 1 : 0;
  step.should_leave = info.should_leave ? 1 : 0;
  return step;
}

nereus_traits TraitsOf(const JobTraits& job) {
  nereus_traits traits = {};
  traits.rank = job.rank;
  traits.updates_parameters = job.updates_parameters ? 1 : 0;
  traits.may_skip = job.may_skip ? 1 : 0;
  traits.sparse = job.sparse ? 1 : 0;
  traits.uses_adam = HasMoments(job.optimizer.rule) ? 1 : 0;
  traits.learning_rate = job.optimizer.learning_rate;
  traits.momentum = job.optimizer.momentum;
  traits.weight_decay = job.optimizer.weight_decay;
  traits.beta1 = job.optimizer.beta1;
  traits.beta2 = job.optimizer.beta2;
  traits.epsilon = job.optimizer.epsilon;
  return traits;
}

// Returns the error that WriteStruct would return for the caller's struct.
// Called before BeginStep: if the error came after BeginStep, the caller would
// not learn which step has begun.
absl::Status CheckStepRoom(const nereus_step* step) {
  return CheckStructOut("step", step, kStepBytesMin, alignof(nereus_step));
}

nlohmann::json MeasuredJson(const Measurements& measured) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerTime& time : measured.times) {
    layers.push_back(
        {{"forward_seconds", absl::ToDoubleSeconds(time.forward)},
         {"backward_seconds", absl::ToDoubleSeconds(time.backward)}});
  }
  nlohmann::json json = {
      {"layers", layers},
      {"step_seconds", absl::ToDoubleSeconds(measured.step_time)},
      {"waits_in_forward", measured.waits_in_forward}};
  if (measured.link.has_value()) {
    json["link_bytes_per_second"] = measured.link->rate;
    json["link_latency_seconds"] =
        absl::ToDoubleSeconds(measured.link->latency);
  }
  if (measured.memory_rate.has_value()) {
    json["memory_bytes_per_second"] = *measured.memory_rate;
  }
  return json;
}

}  // namespace

std::string ReportJson(const ClientReport& report) {
  nlohmann::json json = {{"layers", nlohmann::json::array()},
                         {"peers", nlohmann::json::array()}};
  for (const LayerReport& layer : report.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"scheme", layer.scheme},
                              {"wire", layer.wire},
                              {"reason", layer.reason},
                              {"rounds", layer.rounds},
                              {"bytes_sent", layer.bytes_sent},
                              {"bytes_received", layer.bytes_received},
                              {"latency_total_seconds",
                               absl::ToDoubleSeconds(layer.latency_total)}});
  }
  for (const PeerTraffic& peer : report.peers) {
    json["peers"].push_back({{"kind", peer.is_shard ? "server" : "worker"},
                             {"rank", peer.rank},
                             {"bytes_sent", peer.bytes_sent},
                             {"bytes_received", peer.bytes_received}});
  }
  if (report.measured.has_value()) {
    json["measured"] = MeasuredJson(*report.measured);
  }
  json["turn_seconds"] = absl::ToDoubleSeconds(report.turn_time);
  if (report.saved_round.has_value()) {
    json["saved_round"] = *report.saved_round;
  }
  return json.dump();
}

void LogCollector::SetLinesMax(size_t lines_max) {
  MutexLock lock(&mu_);
  lines_max_ = lines_max;
  Trim();
}

void LogCollector::Add(LogLevel level, const std::string& text) {
  MutexLock lock(&mu_);
  lines_.push_back({level, text});
  Trim();
}

std::optional<LogCollector::Line> LogCollector::Take(
    std::optional<size_t> bytes_max) {
  MutexLock lock(&mu_);
  if (!rest_.has_value()) Next();
  if (!rest_.has_value() || !bytes_max.has_value()) return rest_;
  if (rest_->text.size() <= *bytes_max) {
    return std::exchange(rest_, std::nullopt);
  }
  Line line = *rest_;
  rest_->text.erase(0, *bytes_max);
  return line;
}

void LogCollector::Next() {
  if (lost_count_ > 0) {
    rest_ = Line{LogLevel::kWarning,
                 absl::StrCat(std::exchange(lost_count_, 0),
                              " log lines are lost: they came faster than they "
                              "were taken")};
  } else if (!lines_.empty()) {
    rest_ = std::move(lines_.front());
    lines_.pop_front();
  }
}

void LogCollector::Trim() {
  while (lines_.size() > lines_max_) {
    lines_.pop_front();
    ++lost_count_;
  }
}

}  // namespace nereus

using nereus::Client;
using nereus::ClientEntry;
using nereus::LobbyEntry;

// ---- The library.

int32_t nereus_abi_version() { return NEREUS_ABI_VERSION; }

const char* nereus_version() { return nereus::kVersion; }

const char* nereus_last_error() { return nereus::LastError(); }

nereus_code nereus_set_log_level(int32_t level) {
  return nereus::Run([&]() -> absl::Status {
    if (level < NEREUS_LOG_DEBUG || level > NEREUS_LOG_ERROR) {
      return nereus::InvalidArgumentError("level is ", level,
                                          ", must be 0 to 3");
    }
    nereus::SetLogLevel(static_cast<nereus::LogLevel>(level));
    return absl::OkStatus();
  });
}

nereus_code nereus_collect_log(int32_t lines_max) {
  return nereus::Run([&]() -> absl::Status {
    if (lines_max < 0) {
      return nereus::InvalidArgumentError("lines_max is ", lines_max,
                                          ", must not be negative");
    }
    if (lines_max > 0) nereus::TheLog().SetLinesMax(lines_max);
    nereus::SetLogSink(lines_max > 0 ? nereus::CollectLine : nullptr);
    return absl::OkStatus();
  });
}

nereus_code nereus_next_log_line(int32_t* level, char* text, int64_t capacity,
                                 int64_t* length) {
  return nereus::Run([&]() -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("level", level));
    NEREUS_TRY(nereus::CheckRoom(text, capacity, length));
    // WriteText copies this many bytes of the line, and adds a NUL.
    std::optional<size_t> bytes_max;
    if (capacity > 0) bytes_max = static_cast<size_t>(capacity - 1);
    const auto line = nereus::TheLog().Take(bytes_max);
    if (!line.has_value()) return nereus::NotFoundError("no log line");
    *level = static_cast<int32_t>(line->level);
    nereus::WriteText(line->text, text, capacity, length);
    return absl::OkStatus();
  });
}

// ---- A client.

nereus_code nereus_client_connect(const nereus_client_options* options,
                                  const nereus_layer* layers,
                                  int32_t layer_count, void* stream,
                                  nereus_client** client) {
  return nereus::Run([&]() -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("client", client));
    *client = nullptr;
    const nereus::Binding binding =
        NEREUS_TRY(nereus::ReadBinding(options, layers, layer_count));
    nereus::WatchForks();
    auto joining = NEREUS_TRY(
        binding.on_gpu
            ? nereus::JoinOnGpu(binding.options, binding.gpu, binding.layers,
                                nereus::StreamOf(stream))
            : Client::Join(binding.options, binding.layers));
    *client = nereus::ClientTable::Get().Add(std::move(joining));
    return absl::OkStatus();
  });
}

nereus_code nereus_client_wait_connected(nereus_client* client,
                                         int64_t timeout_ms, void* stream) {
  return nereus::OnEntry(client, /*needs_joined=*/false,
                         [&](ClientEntry& entry) {
                           return entry.AwaitJoined(nereus::Timeout(timeout_ms),
                                                    nereus::StreamOf(stream));
                         });
}

nereus_code nereus_client_error(nereus_client* client, char* text,
                                int64_t capacity, int64_t* length) {
  return nereus::Run([&]() -> absl::Status {
    NEREUS_TRY(nereus::CheckRoom(text, capacity, length));
    const auto entry = nereus::ClientTable::Get().Find(client);
    if (entry == nullptr) return nereus::NoClientError(client);
    nereus::WriteText(entry->error(), text, capacity, length);
    return absl::OkStatus();
  });
}

nereus_code nereus_client_traits(nereus_client* client, nereus_traits* traits) {
  return nereus::OnClient(client, [&](Client& joined) {
    return nereus::WriteStruct("traits", nereus::TraitsOf(joined.traits()),
                               nereus::kTraitsBytesMin, traits);
  });
}

nereus_code nereus_client_begin_step(nereus_client* client, int64_t timeout_ms,
                                     void* stream, nereus_step* step) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckStepRoom(step));
    const nereus::StepInfo info = NEREUS_TRY(joined.BeginStep(
        nereus::Timeout(timeout_ms), nereus::StreamOf(stream)));
    return nereus::WriteStruct("step", nereus::StepOf(info),
                               nereus::kStepBytesMin, step);
  });
}

nereus_code nereus_client_push(nereus_client* client, int32_t layer,
                               int64_t step, float* gradient, int64_t length,
                               void* stream) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckArray("gradient", gradient, length));
    return joined.Push(layer, step, nereus::SpanOf(gradient, length),
                       nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_push_factors(nereus_client* client, int32_t layer,
                                       int64_t step,
                                       const nereus_factors* factors,
                                       float* gradient, int64_t length,
                                       void* stream) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    const nereus_factors read = NEREUS_TRY(
        nereus::ReadStruct("factors", factors, nereus::kFactorsBytesMin));
    NEREUS_TRY(nereus::CheckReserved("factors", read.reserved));
    NEREUS_TRY(nereus::CheckArray("factors.output_gradient",
                                  read.output_gradient,
                                  read.output_gradient_length));
    NEREUS_TRY(
        nereus::CheckArray("factors.input", read.input, read.input_length));
    NEREUS_TRY(nereus::CheckArray("gradient", gradient, length));
    const nereus::Factors pushed = {
        nereus::SpanOf(read.output_gradient, read.output_gradient_length),
        nereus::SpanOf(read.input, read.input_length)};
    return joined.PushFactors(layer, step, pushed,
                              nereus::SpanOf(gradient, length),
                              nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_set_factor_rows(nereus_client* client,
                                          const int64_t* rows, int32_t count) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("rows", rows));
    if (count < 0) {
      return nereus::InvalidArgumentError("count is ", count,
                                          ", must be the number of layers");
    }
    return joined.SetFactorRows({rows, static_cast<size_t>(count)});
  });
}

nereus_code nereus_client_factor_rows(nereus_client* client, int32_t layer,
                                      int64_t* rows) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("rows", rows));
    *rows = NEREUS_TRY(joined.factor_rows(layer));
    return absl::OkStatus();
  });
}

nereus_code nereus_client_wait(nereus_client* client, int32_t layer,
                               int64_t step, int64_t timeout_ms, void* stream) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.Wait(layer, step, nereus::Timeout(timeout_ms),
                       nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_wait_forward(nereus_client* client, int32_t layer,
                                       int64_t timeout_ms, void* stream) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.WaitForward(layer, nereus::Timeout(timeout_ms),
                              nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_wait_all(nereus_client* client, int64_t step,
                                   int64_t timeout_ms, void* stream) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.WaitAll(step, nereus::Timeout(timeout_ms),
                          nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_mean(nereus_client* client, int32_t layer,
                               const float** mean, int64_t* length) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("mean", mean));
    NEREUS_TRY(nereus::CheckNotNull("length", length));
    const absl::Span<const float> values = NEREUS_TRY(joined.Mean(layer));
    *mean = values.data();
    *length = static_cast<int64_t>(values.size());
    return absl::OkStatus();
  });
}

nereus_code nereus_client_skipped(nereus_client* client, int64_t step,
                                  int32_t* skipped) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("skipped", skipped));
    *skipped = joined.Skipped(step) ? 1 : 0;
    return absl::OkStatus();
  });
}

nereus_code nereus_client_take_turn(nereus_client* client, int64_t timeout_ms) {
  return nereus::OnEntry(client, /*needs_joined=*/true,
                         [&](ClientEntry& entry) {
                           return entry.TakeTurn(nereus::Timeout(timeout_ms));
                         });
}

nereus_code nereus_client_give_turn(nereus_client* client) {
  return nereus::OnEntry(client, /*needs_joined=*/true, [](ClientEntry& entry) {
    entry.GiveTurn();
    return absl::OkStatus();
  });
}

nereus_code nereus_client_set_device_memory(nereus_client* client,
                                            int64_t resident_bytes,
                                            int64_t turn_bytes) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.SetDeviceMemory(resident_bytes, turn_bytes);
  });
}

nereus_code nereus_client_checkpoint(nereus_client* client) {
  return nereus::OnClient(client,
                          [](Client& joined) { return joined.Checkpoint(); });
}

nereus_code nereus_client_gather(nereus_client* client, const void* value,
                                 int64_t length, int64_t timeout_ms,
                                 int32_t* count) {
  return nereus::OnEntry(
      client, /*needs_joined=*/true, [&](ClientEntry& entry) -> absl::Status {
        NEREUS_TRY(nereus::CheckNotNull("count", count));
        NEREUS_TRY(nereus::CheckBytes("value", value, length));
        *count = NEREUS_TRY(entry.Gather(
            {static_cast<const char*>(value), static_cast<size_t>(length)},
            nereus::Timeout(timeout_ms)));
        return absl::OkStatus();
      });
}

nereus_code nereus_client_gathered(nereus_client* client, int32_t index,
                                   void* value, int64_t capacity,
                                   int64_t* length) {
  return nereus::OnEntry(
      client, /*needs_joined=*/true, [&](ClientEntry& entry) -> absl::Status {
        NEREUS_TRY(nereus::CheckNotNull("length", length));
        NEREUS_TRY(nereus::CheckBytes("value", value, capacity));
        const std::string found = NEREUS_TRY(entry.Gathered(index));
        nereus::WriteBytes(found, value, capacity, length);
        return absl::OkStatus();
      });
}

nereus_code nereus_client_report_json(nereus_client* client, char* text,
                                      int64_t capacity, int64_t* length) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckRoom(text, capacity, length));
    nereus::WriteText(nereus::ReportJson(joined.Report()), text, capacity,
                      length);
    return absl::OkStatus();
  });
}

nereus_code nereus_client_abort(nereus_client* client, const char* reason) {
  return nereus::OnClient(client, [&](Client& joined) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("reason", reason));
    return joined.Abort(reason);
  });
}

nereus_code nereus_client_leave(nereus_client* client, int64_t timeout_ms,
                                void* stream) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.Leave(nereus::Timeout(timeout_ms), nereus::StreamOf(stream));
  });
}

nereus_code nereus_client_leave_early(nereus_client* client, int64_t timeout_ms,
                                      void* stream) {
  return nereus::OnClient(client, [&](Client& joined) {
    return joined.LeaveEarly(nereus::Timeout(timeout_ms),
                             nereus::StreamOf(stream));
  });
}

void nereus_client_close(nereus_client* client) {
  if (client == nullptr) return;
  nereus::Run([&] {
    const auto entry = nereus::ClientTable::Get().Remove(client);
    if (entry == nullptr) return nereus::NoClientError(client);
    entry->Close(/*waits=*/true);
    return absl::OkStatus();
  });
}

// ---- A lobby.

nereus_code nereus_lobby_enter(const nereus_client_options* options,
                               int32_t count, nereus_lobby** lobby) {
  return nereus::Run([&]() -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("lobby", lobby));
    *lobby = nullptr;
    const nereus::ClientOptions read =
        NEREUS_TRY(nereus::ReadLobbyOptions(options));
    nereus::WatchForks();
    auto entered = NEREUS_TRY(nereus::Lobby::Enter(read, count));
    *lobby = nereus::LobbyTable::Get().Add(std::move(entered));
    return absl::OkStatus();
  });
}

nereus_code nereus_lobby_gather(nereus_lobby* lobby, const void* value,
                                int64_t length, int64_t timeout_ms,
                                int32_t* count) {
  return nereus::OnLobby(lobby, [&](LobbyEntry& entry) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("count", count));
    NEREUS_TRY(nereus::CheckBytes("value", value, length));
    *count = NEREUS_TRY(entry.Gather(
        {static_cast<const char*>(value), static_cast<size_t>(length)},
        nereus::Timeout(timeout_ms)));
    return absl::OkStatus();
  });
}

nereus_code nereus_lobby_gathered(nereus_lobby* lobby, int32_t index,
                                  void* value, int64_t capacity,
                                  int64_t* length) {
  return nereus::OnLobby(lobby, [&](LobbyEntry& entry) -> absl::Status {
    NEREUS_TRY(nereus::CheckNotNull("length", length));
    NEREUS_TRY(nereus::CheckBytes("value", value, capacity));
    const std::string found = NEREUS_TRY(entry.Gathered(index));
    nereus::WriteBytes(found, value, capacity, length);
    return absl::OkStatus();
  });
}

void nereus_lobby_close(nereus_lobby* lobby) {
  if (lobby == nullptr) return;
  nereus::Run([&] {
    const auto entry = nereus::LobbyTable::Get().Remove(lobby);
    if (entry == nullptr) {
      return nereus::InvalidArgumentError("lobby is no open lobby");
    }
    entry->Close();
    return absl::OkStatus();
  });
}
