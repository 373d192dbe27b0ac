#include "common/messages/worker_event.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/base/json_fields.h"
#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/plan/scheme.h"
#include "common/plan/time_model.h"
#include "common/plan/wire_type.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Returns the first 64 bytes of a worker's text for an error message, escaped,
// because a terminal may show the message.
std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, 64));
}

// Lists "rank". Its range is checked because callers use it as an index.
void ListRank(JsonFields& fields, int& rank) {
  fields.Integer("rank", rank, 0, kWorkersMax - 1);
}

// Lists a time. When a longer time than kComputeTimeMax is read, it becomes
// kComputeTimeMax.
void ListTime(JsonFields& fields, const char* name, absl::Duration& time) {
  fields.Seconds(name, time);
  time = std::min(time, kComputeTimeMax);
}

void ListProgress(JsonFields& fields, WorkerProgress& progress) {
  ListRank(fields, progress.rank);
  fields.Count("epoch", progress.epoch);
  fields.Count("epochs", progress.epochs);
  fields.Count("step", progress.step);
  fields.Count("steps", progress.steps);
  fields.NumberOrNan("loss", progress.loss);
  fields.Number("images_per_second", progress.images_per_second);
  fields.Count("bytes", progress.bytes);
}

void ListLink(JsonFields& fields, LinkSpeed& link) {
  fields.Number("bytes_per_second", link.rate);
  ListTime(fields, "latency_seconds", link.latency);
  ListTime(fields, "message_seconds", link.message_time);
  fields.Check(link.Validate());
}

void ListMeasured(JsonFields& fields, WorkerMeasurements& measured) {
  ListTime(fields, "step_seconds", measured.step_time);
  fields.Flag("waits_in_forward", measured.waits_in_forward);
  fields.OrNull("link", measured.link, [&](LinkSpeed& link) {
    fields.Object("link", link, ListLink);
  });
  fields.OrNull("memory_bytes_per_second", measured.memory_rate,
                [&](double& rate) {
                  fields.Number("memory_bytes_per_second", rate);
                  fields.Check(CheckMemoryRate(rate));
                });
}

// Returns OK if the names are known and the layer can go by the scheme.
absl::Status CheckRoute(const LayerResult& layer) {
  const Scheme scheme = NEREUS_TRY(ParseScheme(layer.scheme));
  NEREUS_TRY(ParseWireType(layer.wire));
  if (SupportsScheme(layer.spec, scheme)) return absl::OkStatus();
  return InvalidArgumentError("layer ", DescribeLayer(layer.spec),
                              " cannot go by scheme ", layer.scheme);
}

// Lists one layer. The layer has times only if `is_measured`.
void ListLayer(JsonFields& fields, LayerResult& layer, bool is_measured) {
  ListLayerFields(fields, layer.spec);
  fields.Flag("has_factors", layer.spec.has_factors);
  fields.Text("scheme", layer.scheme);
  fields.Text("wire", layer.wire);
  fields.Text("reason", layer.reason);
  fields.Count("rounds", layer.rounds);
  fields.Count("bytes_sent", layer.bytes_sent);
  fields.Count("bytes_received", layer.bytes_received);
  fields.Seconds("latency_seconds_mean", layer.latency_seconds_mean);
  if (is_measured) {
    ListTime(fields, "forward_seconds", layer.time.forward);
    ListTime(fields, "backward_seconds", layer.time.backward);
  }
  if (fields.is_reading()) fields.Check(CheckRoute(layer));
}

void ListTraffic(JsonFields& fields, WorkerTraffic& traffic) {
  std::string peer = traffic.is_shard ? "shard" : "worker";
  fields.Text("peer", peer);
  traffic.is_shard = peer == "shard";
  if (!traffic.is_shard && peer != "worker") {
    fields.Check(
        InvalidArgumentError("peer is ", Shown(peer), ", not shard or worker"));
  }
  ListRank(fields, traffic.rank);
  fields.Count("bytes_sent", traffic.bytes_sent);
  fields.Count("bytes_received", traffic.bytes_received);
}

// When a result is read, its layers must form a valid model, because nereusctl
// makes a plan for them.
void ListResult(JsonFields& fields, WorkerResult& result) {
  ListRank(fields, result.rank);
  fields.Integer("joins", result.joins, 1, kWorkersMax);
  fields.Integer("workers", result.workers, 0, kWorkersMax);
  fields.Count("steps", result.steps.done);
  fields.Integer("last_step", result.steps.last, -1, JsonFields::kCountMax);
  fields.OrNull("saved_round", result.saved_round,
                [&](int64_t& round) { fields.Count("saved_round", round); });
  fields.Count("skipped_steps", result.steps.skipped);
  fields.NumberOrNan("train_loss", result.steps.train_loss);
  fields.OrNull("test_accuracy", result.test_accuracy, [&](double& accuracy) {
    fields.Number("test_accuracy", accuracy);
  });
  fields.Count("images", result.images);
  fields.Seconds("seconds", result.seconds.total);
  fields.Seconds("forward_seconds", result.seconds.forward);
  fields.Seconds("backward_seconds", result.seconds.backward);
  fields.Seconds("wait_seconds", result.seconds.wait);
  fields.Seconds("turn_seconds", result.seconds.turn);
  fields.Text("parameter_checksum", result.parameter_checksum);
  fields.Count("initial_bytes", result.initial_bytes);
  fields.OrNull("measured", result.measured, [&](WorkerMeasurements& measured) {
    fields.Object("measured", measured, ListMeasured);
  });
  fields.Objects("layers", result.layers,
                 [&](JsonFields& item, LayerResult& layer) {
                   ListLayer(item, layer, result.measured.has_value());
                 });
  fields.Objects("traffic", result.traffic, ListTraffic);
  if (!fields.is_reading() || !fields.status().ok()) return;
  std::vector<LayerSpec> specs;
  for (const LayerResult& layer : result.layers) specs.push_back(layer.spec);
  fields.Check(ValidateLayers(specs));
}

// Returns an event as JSON text; `list` lists the fields. A text in an event,
// such as LayerResult::reason, may come from another process and have bytes
// that are not UTF-8. `replace` replaces them; by default, dump() would throw.
template <typename Event>
std::string Format(const char* name, Event event,
                   void (*list)(JsonFields&, Event&)) {
  nlohmann::ordered_json json = {{"event", name}};
  JsonFields fields(json);
  list(fields, event);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Route LayerResult::route() const {
  return {*ParseScheme(scheme), *ParseWireType(wire)};
}

std::string FormatWorkerEvent(const WorkerProgress& progress) {
  return Format("progress", progress, ListProgress);
}

std::string FormatWorkerEvent(const WorkerResult& result) {
  return Format("done", result, ListResult);
}

// A line that is not an event is an error, because workers write nothing else
// to standard output: the log goes to standard error.
absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line) {
  const Json object = ParseJson(line);
  std::string event;
  JsonFields any(object, "worker event");
  any.Text("event", event);
  NEREUS_TRY(any.status());
  JsonFields fields(object, absl::StrCat(Shown(event), " event"));
  if (event == "progress") {
    WorkerProgress progress;
    ListProgress(fields, progress);
    NEREUS_TRY(fields.status());
    return progress;
  }
  if (event == "done") {
    WorkerResult result;
    ListResult(fields, result);
    NEREUS_TRY(fields.status());
    result.json = object.dump();
    return result;
  }
  return InvalidArgumentError("worker event: event is ", Shown(event),
                              ", not progress or done");
}

}  // namespace nereus
