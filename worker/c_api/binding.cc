#include "worker/c_api/binding.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/job.h"
#include "worker/c_api/structs.h"

namespace nereus {
namespace {

// Sets `text` to the caller's text. Leaves the default if `in` is NULL.
void ReadText(const char* in, std::string& text) {
  if (in != nullptr) text = in;
}

// Sets `duration` to the caller's time. Leaves the default if the time is 0. A
// negative time fails later, in ClientOptions::Validate.
void ReadDuration(int64_t milliseconds, absl::Duration& duration) {
  if (milliseconds != 0) duration = absl::Milliseconds(milliseconds);
}

// Returns entry number `value` of `table`. Errors: kInvalidArgument.
template <typename T, size_t n>
absl::StatusOr<T> ReadConstant(absl::string_view name, int32_t value,
                               const T (&table)[n]) {
  if (value >= 0 && value < static_cast<int32_t>(n)) return table[value];
  return InvalidArgumentError(name, " is ", value, ", must be 0 to ", n - 1);
}

absl::StatusOr<bool> ReadFlag(absl::string_view name, int32_t value) {
  constexpr bool kValues[] = {false, true};
  return ReadConstant(name, value, kValues);
}

absl::Status ReadSettings(const nereus_client_options& in,
                          std::vector<Setting>& settings) {
  if (in.settings_count < 0 ||
      (in.settings_count > 0 && in.settings == nullptr)) {
    return InvalidArgumentError("options.settings_count is ", in.settings_count,
                                in.settings == nullptr
                                    ? ", and options.settings is NULL"
                                    : ", must not be negative");
  }
  for (int32_t i = 0; i < in.settings_count; ++i) {
    const nereus_setting& setting = in.settings[i];
    if (setting.name == nullptr || setting.value == nullptr) {
      return InvalidArgumentError("options.settings[", i,
                                  "] has no name or no value");
    }
    settings.push_back({setting.name, setting.value});
  }
  return absl::OkStatus();
}

absl::Status ReadOptions(const nereus_client_options& in, Binding& binding) {
  constexpr std::optional<OptimizerPlace> kPlaces[] = {
      OptimizerPlace::kServer, OptimizerPlace::kWorker, std::nullopt};
  ClientOptions& options = binding.options;
  const bool without_state =
      NEREUS_TRY(ReadFlag("options.without_state", in.without_state));
  options.optimizer_has_state = !without_state;
  options.scales_loss =
      NEREUS_TRY(ReadFlag("options.scales_loss", in.scales_loss));
  options.optimizer =
      NEREUS_TRY(ReadConstant("options.optimizer", in.optimizer, kPlaces));
  ReadText(in.coordinator_address, options.coordinator_address);
  ReadText(in.job, options.job);
  ReadText(in.name, options.name);
  const bool has_rank = NEREUS_TRY(ReadFlag("options.has_rank", in.has_rank));
  if (has_rank) {
    options.rank = in.rank;
  } else if (in.rank != 0) {
    return InvalidArgumentError("options.rank is ", in.rank,
                                ", and options.has_rank is 0: set it to 1");
  }
  ReadText(in.host, options.address.host);
  ReadText(in.listen, options.address.listen);
  ReadText(in.node, options.node);
  options.address.control_port = in.control_port;
  options.address.data_port = in.data_port;
  options.address.http_port = in.http_port;
  NEREUS_TRY(ReadSettings(in, options.settings));
  const bool without_shared_memory = NEREUS_TRY(
      ReadFlag("options.without_shared_memory", in.without_shared_memory));
  options.shared_memory = !without_shared_memory;
  const bool means_apart =
      NEREUS_TRY(ReadFlag("options.means_apart", in.means_apart));
  options.means_in_place = !means_apart;
  ReadDuration(in.connect_timeout_ms, options.connect_timeout);
  ReadDuration(in.round_timeout_ms, options.round_timeout);
  ReadDuration(in.stall_threshold_ms, options.stall_threshold);
  ReadText(in.share, options.share.folder);
  if (in.share_weight != 0) options.share.weight = in.share_weight;
  ReadDuration(in.share_limit_ms, options.share.limit);
  options.share.memory_bytes = in.share_memory_bytes;
  options.share.resident_bytes = in.share_resident_bytes;
  options.share.turn_bytes = in.share_turn_bytes;
  options.share.allows_group =
      NEREUS_TRY(ReadFlag("options.share_with_group", in.share_with_group));
  options.share.is_optional =
      NEREUS_TRY(ReadFlag("options.share_is_optional", in.share_is_optional));
  binding.on_gpu = NEREUS_TRY(ReadFlag("options.memory", in.memory));
  binding.gpu.device = in.device;
  binding.gpu.staging_bytes = in.staging_bytes;
  if (!binding.on_gpu && (in.device != 0 || in.staging_bytes != 0)) {
    return InvalidArgumentError(
        "options.device is ", in.device, " and options.staging_bytes is ",
        in.staging_bytes, ", which need NEREUS_MEMORY_CUDA");
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerBinding> ReadLayer(const std::string& name,
                                       const nereus_layer& in) {
  constexpr LayerKind kKinds[] = {
      LayerKind::kVector, LayerKind::kFullyConnected, LayerKind::kConvolution,
      LayerKind::kEmbedding};
  LayerBinding layer;
  NEREUS_TRY(CheckReserved(name, in.reserved));
  if (in.name == nullptr) return InvalidArgumentError(name, ".name is NULL");
  layer.spec.name = in.name;
  layer.spec.kind =
      NEREUS_TRY(ReadConstant(absl::StrCat(name, ".kind"), in.kind, kKinds));
  layer.spec.m = in.m;
  layer.spec.n = in.n;
  layer.spec.parameters = in.parameters_count;
  layer.spec.rows = in.rows;
  layer.spec.has_factors =
      NEREUS_TRY(ReadFlag(absl::StrCat(name, ".has_factors"), in.has_factors));
  NEREUS_TRY(ValidateLayer(layer.spec));
  layer.on_host =
      NEREUS_TRY(ReadFlag(absl::StrCat(name, ".on_host"), in.on_host));
  if (in.parameters == nullptr) {
    return InvalidArgumentError(name, ".parameters is NULL");
  }
  if (in.state_arrays < 0 || in.state_arrays > kStateArraysMax) {
    return InvalidArgumentError(name, ".state_arrays is ", in.state_arrays,
                                ", must be 0 to ", kStateArraysMax);
  }
  if ((in.state == nullptr) != (in.state_arrays == 0)) {
    return InvalidArgumentError(name, ".state_arrays is ", in.state_arrays,
                                ", and ", name, ".state is ",
                                in.state == nullptr ? "NULL" : "not NULL");
  }
  const auto count = static_cast<size_t>(in.parameters_count);
  layer.parameters = {in.parameters, count};
  layer.state = {in.state, in.state_arrays * count};
  return layer;
}

}  // namespace

absl::Status CheckReserved(absl::string_view name, int32_t value) {
  if (value == 0) return absl::OkStatus();
  return InvalidArgumentError(name, ".reserved is ", value, ", must be 0");
}

absl::StatusOr<ClientOptions> ReadLobbyOptions(
    const nereus_client_options* options) {
  Binding binding;
  const nereus_client_options in =
      NEREUS_TRY(ReadStruct("options", options, kClientOptionsBytesMin));
  NEREUS_TRY(ReadOptions(in, binding));
  return binding.options;
}

absl::StatusOr<Binding> ReadBinding(const nereus_client_options* options,
                                    const nereus_layer* layers,
                                    int32_t layer_count) {
  Binding binding;
  const nereus_client_options in =
      NEREUS_TRY(ReadStruct("options", options, kClientOptionsBytesMin));
  NEREUS_TRY(ReadOptions(in, binding));
  if (layers == nullptr) return InvalidArgumentError("layers is NULL");
  if (layer_count < 1) {
    return InvalidArgumentError("layer_count is ", layer_count,
                                ", must be at least 1");
  }
  // Steps from layer to layer by the size that the caller has set: the caller's
  // structs may be shorter or longer than those of this library.
  const uint32_t stride = layers->size;
  const auto* next = reinterpret_cast<const char*>(layers);
  for (int32_t i = 0; i < layer_count; ++i, next += stride) {
    const std::string name = absl::StrCat("layers[", i, "]");
    const auto* const at = reinterpret_cast<const nereus_layer*>(next);
    if (at->size != stride) {
      return InvalidArgumentError(name, ".size is ", at->size,
                                  ", and layers[0].size is ", stride);
    }
    const nereus_layer layer = NEREUS_TRY(ReadStruct(name, at, kLayerBytesMin));
    auto bound = NEREUS_TRY(ReadLayer(name, layer));
    binding.layers.push_back(std::move(bound));
  }
  return binding;
}

}  // namespace nereus
