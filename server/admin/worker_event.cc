#include "server/admin/worker_event.h"

#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"
#include "nlohmann/json.hpp"
#include "server/admin/json_fields.h"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Returns text of a worker for a message, which may end up in a terminal.
std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, 64));
}

// Returns "rank", which callers use as an index.
int Rank(JsonFields& fields) {
  return static_cast<int>(fields.Integer("rank", 0, kWorkersMax - 1));
}

// Reads an event of a worker that trains. A loss that is no number is null.
absl::StatusOr<WorkerEvent> ParseProgress(const Json& object) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  JsonFields fields(object, "progress event");
  WorkerProgress progress;
  progress.rank = Rank(fields);
  progress.epoch = fields.Count("epoch");
  progress.epochs = fields.Count("epochs");
  progress.step = fields.Count("step");
  progress.steps = fields.Count("steps");
  progress.loss = fields.NumberOrNull("loss").value_or(kNan);
  progress.images_per_second = fields.Number("images_per_second");
  progress.bytes = fields.Count("bytes");
  NEREUS_TRY(fields.status());
  return progress;
}

// Reads what the worker measured for plans by time.
absl::StatusOr<WorkerResult::Measured> ParseMeasured(const Json& object) {
  JsonFields fields(object, "measurements of the done event");
  WorkerResult::Measured measured;
  measured.step_time = fields.Time("step_seconds");
  measured.link.rate = fields.Number("bytes_per_second");
  measured.link.latency = fields.Time("latency_seconds");
  measured.link.message_time = fields.Time("message_seconds");
  NEREUS_TRY(fields.status());
  NEREUS_TRY(measured.link.Validate());
  return measured;
}

// Reads one layer. It has times of its own if the worker measured.
absl::StatusOr<LayerResult> ParseLayer(const Json& object, bool is_measured) {
  JsonFields fields(object, "layer of the done event");
  LayerResult layer;
  layer.spec.name = fields.Text("name");
  const std::string kind = fields.Text("kind");
  layer.spec.m = fields.Count("m");
  layer.spec.n = fields.Count("n");
  layer.spec.parameters = fields.Count("parameters");
  layer.spec.rows = fields.Count("rows");
  layer.spec.has_factors = fields.Flag("has_factors");
  const std::string scheme = fields.Text("scheme");
  const std::string wire = fields.Text("wire");
  layer.reason = fields.Text("reason");
  layer.rounds = fields.Count("rounds");
  layer.bytes_sent = fields.Count("bytes_sent");
  layer.bytes_received = fields.Count("bytes_received");
  layer.latency_seconds_mean = fields.Seconds("latency_seconds_mean");
  if (is_measured) {
    layer.time = {fields.Time("forward_seconds"),
                  fields.Time("backward_seconds")};
  }
  NEREUS_TRY(fields.status());
  layer.spec.kind = NEREUS_TRY(ParseLayerKind(kind));
  layer.route.scheme = NEREUS_TRY(ParseScheme(scheme));
  layer.route.wire = NEREUS_TRY(ParseWireType(wire));
  if (SupportsScheme(layer.spec, layer.route.scheme)) return layer;
  return InvalidArgumentError("layer ", DescribeLayer(layer.spec),
                              " cannot go by scheme ", scheme);
}

// Reads the bytes between the worker and one peer.
absl::StatusOr<WorkerTraffic> ParseTraffic(const Json& object) {
  JsonFields fields(object, "traffic of the done event");
  const std::string peer = fields.Text("peer");
  WorkerTraffic traffic;
  traffic.is_shard = peer == "shard";
  traffic.rank = Rank(fields);
  traffic.bytes_sent = fields.Count("bytes_sent");
  traffic.bytes_received = fields.Count("bytes_received");
  NEREUS_TRY(fields.status());
  if (traffic.is_shard || peer == "worker") return traffic;
  return InvalidArgumentError("traffic of the done event: peer is ",
                              Shown(peer), ", not shard or worker");
}

// Reads the last event of a worker. The layers must make a valid model, because
// the plan is made again for them.
absl::StatusOr<WorkerEvent> ParseResult(const Json& object) {
  JsonFields fields(object, "done event");
  WorkerResult result;
  result.rank = Rank(fields);
  result.joins = static_cast<int>(fields.Integer("joins", 1, kWorkersMax));
  result.workers = static_cast<int>(fields.Integer("workers", 0, kWorkersMax));
  result.steps = {fields.Count("steps"),
                  fields.Integer("last_step", -1, JsonFields::kCountMax),
                  fields.Count("skipped_steps")};
  if (!fields.IsNull("saved_round")) {
    result.saved_round = fields.Count("saved_round");
  }
  result.test_accuracy = fields.NumberOrNull("test_accuracy");
  result.images = fields.Count("images");
  result.seconds = {
      fields.Seconds("seconds"), fields.Seconds("forward_seconds"),
      fields.Seconds("backward_seconds"), fields.Seconds("wait_seconds")};
  result.parameter_checksum = fields.Text("parameter_checksum");
  const Json& layers = fields.List("layers");
  const Json& traffic = fields.List("traffic");
  NEREUS_TRY(fields.status());

  if (!fields.IsNull("measured")) {
    result.measured = NEREUS_TRY(ParseMeasured(object["measured"]));
  }
  std::vector<LayerSpec> specs;
  for (const Json& item : layers) {
    LayerResult layer =
        NEREUS_TRY(ParseLayer(item, result.measured.has_value()));
    specs.push_back(layer.spec);
    result.layers.push_back(std::move(layer));
  }
  NEREUS_TRY(ValidateLayers(specs));
  for (const Json& item : traffic) {
    WorkerTraffic entry = NEREUS_TRY(ParseTraffic(item));
    result.traffic.push_back(entry);
  }
  result.json = object.dump();
  return result;
}

}  // namespace

// Other lines than events are a mistake: the output belongs to the events, and
// the log goes to standard error.
absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line) {
  const Json object = ParseJson(line);
  JsonFields fields(object, "worker event");
  const std::string event = fields.Text("event");
  NEREUS_TRY(fields.status());
  if (event == "progress") return ParseProgress(object);
  if (event == "done") return ParseResult(object);
  return InvalidArgumentError("worker event: event is ", Shown(event),
                              ", not progress or done");
}

}  // namespace nereus
