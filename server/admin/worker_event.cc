#include "server/admin/worker_event.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/plan/cost_model.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Bytes, steps and so on: large enough for any run, small enough for sums.
constexpr int64_t kCountMax = int64_t{1} << 56;

// Reads the fields of one JSON object. The first error stays, and what is read
// after it is zero: so that a caller can read all fields and ask once.
class FieldReader {
 public:
  // `where`: what messages call the object. `object` must outlive this.
  FieldReader(const Json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail("is not a JSON object");
  }

  int64_t Integer(const char* name, int64_t min, int64_t max) {
    const Json* field = Find(name);
    if (field == nullptr) return 0;
    if (!field->is_number_integer()) {
      return Fail(absl::StrCat(name, " is ", field->type_name(),
                               ", not an integer")),
             0;
    }
    // Above int64_t's range, get<int64_t> would wrap to a negative number.
    const bool huge = field->is_number_unsigned() &&
                      field->get<uint64_t>() > static_cast<uint64_t>(max);
    const int64_t value = huge ? 0 : field->get<int64_t>();
    if (huge || value < min || value > max) {
      Fail(absl::StrCat(name, " is ", field->dump(), ", not from ", min, " to ",
                        max));
      return 0;
    }
    return value;
  }

  int64_t Count(const char* name) { return Integer(name, 0, kCountMax); }

  bool Flag(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return false;
    if (!field->is_boolean()) {
      Fail(absl::StrCat(name, " is ", field->type_name(), ", not a boolean"));
      return false;
    }
    return field->get<bool>();
  }

  // A finite number, or null where `null_value` is given.
  double Number(const char* name,
                std::optional<double> null_value = std::nullopt) {
    const Json* field = Find(name);
    if (field == nullptr) return 0;
    if (field->is_null() && null_value.has_value()) return *null_value;
    if (!field->is_number()) {
      Fail(absl::StrCat(name, " is ", field->type_name(), ", not a number"));
      return 0;
    }
    return field->get<double>();
  }

  double Seconds(const char* name) {
    const double value = Number(name);
    if (value < 0) Fail(absl::StrCat(name, " is ", value, ", below 0"));
    return value;
  }

  std::string Text(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return "";
    if (!field->is_string()) {
      Fail(absl::StrCat(name, " is ", field->type_name(), ", not a string"));
      return "";
    }
    return field->get<std::string>();
  }

  const Json& List(const char* name) {
    static const Json& empty = *new Json(Json::array());
    const Json* field = Find(name);
    if (field == nullptr) return empty;
    if (!field->is_array()) {
      Fail(absl::StrCat(name, " is ", field->type_name(), ", not a list"));
      return empty;
    }
    return *field;
  }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto field = object_.find(name);
    if (field != object_.end()) return &*field;
    Fail(absl::StrCat(name, " is missing"));
    return nullptr;
  }

  void Fail(absl::string_view message) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", message));
  }

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

constexpr int64_t kRankMax = kWorkersMax - 1;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// As messages repeat what a worker wrote.
std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, 64));
}

absl::StatusOr<WorkerEvent> ParseProgress(const Json& object) {
  FieldReader fields(object, "progress event");
  WorkerProgress progress;
  progress.rank = static_cast<int>(fields.Integer("rank", 0, kRankMax));
  progress.epoch = fields.Count("epoch");
  progress.epochs = fields.Count("epochs");
  progress.step = fields.Count("step");
  progress.steps = fields.Count("steps");
  progress.loss = fields.Number("loss", kNan);
  progress.images_per_second = fields.Number("images_per_second");
  progress.bytes = fields.Count("bytes");
  NEREUS_RETURN_IF_ERROR(fields.status());
  return progress;
}

// Of an object that has it, up to what TimeModel takes.
absl::Duration Time(FieldReader& fields, const char* name) {
  return std::min(absl::Seconds(fields.Seconds(name)), kComputeTimeMax);
}

absl::StatusOr<WorkerResult::Measured> ParseMeasured(const Json& object) {
  FieldReader fields(object, "what the done event says was measured");
  WorkerResult::Measured measured;
  measured.step_time = Time(fields, "step_seconds");
  measured.link.rate = fields.Number("bytes_per_second");
  measured.link.latency = Time(fields, "latency_seconds");
  measured.link.message_time = Time(fields, "message_seconds");
  NEREUS_RETURN_IF_ERROR(fields.status());
  NEREUS_RETURN_IF_ERROR(measured.link.Validate());
  return measured;
}

absl::StatusOr<WorkerLayer> ParseLayer(const Json& object, bool measured) {
  FieldReader fields(object, "layer of the done event");
  WorkerLayer layer;
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
  if (measured) {
    layer.time = {Time(fields, "forward_seconds"),
                  Time(fields, "backward_seconds")};
  }
  NEREUS_RETURN_IF_ERROR(fields.status());
  NEREUS_ASSIGN_OR_RETURN(layer.spec.kind, ParseLayerKind(kind));
  NEREUS_ASSIGN_OR_RETURN(layer.scheme, ParseScheme(scheme));
  NEREUS_ASSIGN_OR_RETURN(layer.wire, ParseWireType(wire));
  if (!SupportsScheme(layer.spec, layer.scheme)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", DescribeLayer(layer.spec), " cannot go by scheme ", scheme));
  }
  return layer;
}

absl::StatusOr<WorkerTraffic> ParseTraffic(const Json& object) {
  FieldReader fields(object, "traffic of the done event");
  WorkerTraffic traffic;
  const std::string peer = fields.Text("peer");
  traffic.is_shard = peer == "shard";
  traffic.rank = static_cast<int>(fields.Integer("rank", 0, kRankMax));
  traffic.bytes_sent = fields.Count("bytes_sent");
  traffic.bytes_received = fields.Count("bytes_received");
  NEREUS_RETURN_IF_ERROR(fields.status());
  if (!traffic.is_shard && peer != "worker") {
    return absl::InvalidArgumentError(
        absl::StrCat("traffic of the done event: peer is ", Shown(peer),
                     ", not shard or worker"));
  }
  return traffic;
}

absl::StatusOr<WorkerEvent> ParseResult(const Json& object) {
  FieldReader fields(object, "done event");
  WorkerResult result;
  result.rank = static_cast<int>(fields.Integer("rank", 0, kRankMax));
  result.joins = static_cast<int>(fields.Integer("joins", 1, kRankMax));
  result.workers = static_cast<int>(fields.Integer("workers", 0, kWorkersMax));
  result.steps = fields.Count("steps");
  result.last_step = fields.Integer("last_step", -1, kCountMax);
  if (const auto saved = object.find("saved_round");
      saved != object.end() && !saved->is_null()) {
    result.saved_round = fields.Count("saved_round");
  }
  result.skipped_steps = fields.Count("skipped_steps");
  result.train_loss = fields.Number("train_loss", kNan);
  const double accuracy = fields.Number("test_accuracy", kNan);
  if (!std::isnan(accuracy)) result.test_accuracy = accuracy;
  result.images = fields.Count("images");
  result.seconds = fields.Seconds("seconds");
  result.forward_seconds = fields.Seconds("forward_seconds");
  result.backward_seconds = fields.Seconds("backward_seconds");
  result.wait_seconds = fields.Seconds("wait_seconds");
  result.parameter_checksum = fields.Text("parameter_checksum");
  const Json& layers = fields.List("layers");
  const Json& traffic = fields.List("traffic");
  NEREUS_RETURN_IF_ERROR(fields.status());

  if (const auto found = object.find("measured");
      found != object.end() && !found->is_null()) {
    NEREUS_ASSIGN_OR_RETURN(result.measured, ParseMeasured(*found));
  }
  std::vector<LayerSpec> specs;
  for (const Json& item : layers) {
    NEREUS_ASSIGN_OR_RETURN(WorkerLayer layer,
                            ParseLayer(item, result.measured.has_value()));
    specs.push_back(layer.spec);
    result.layers.push_back(std::move(layer));
  }
  NEREUS_RETURN_IF_ERROR(ValidateLayers(specs));
  for (const Json& item : traffic) {
    NEREUS_ASSIGN_OR_RETURN(WorkerTraffic entry, ParseTraffic(item));
    result.traffic.push_back(entry);
  }
  result.json = object.dump();
  return result;
}

constexpr int kDepthMax = 8;

}  // namespace

absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line) {
  // What nests deeper than any event of ours is left out: the library recurses.
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kDepthMax;
  };
  const Json object = Json::parse(line.begin(), line.end(), shallow,
                                  /*allow_exceptions=*/false);
  FieldReader fields(object, "worker event");
  const std::string event = fields.Text("event");
  NEREUS_RETURN_IF_ERROR(fields.status());
  if (event == "progress") return ParseProgress(object);
  if (event == "done") return ParseResult(object);
  return absl::InvalidArgumentError(absl::StrCat(
      "worker event: event is ", Shown(event), ", not progress or done"));
}

}  // namespace nereus
