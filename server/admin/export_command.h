#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "server/admin/command.h"

namespace nereus {

// Writes the parameters of a checkpoint to one safetensors file, for other
// tools: a layer's matrix as "NAME.weight", float32 {M, N}, and its bias as
// "NAME.bias", {M}; what else follows a matrix as "NAME.rest", and a vector
// layer as "NAME". Memory: one piece of a layer.
//
// The file has its name when it is whole. Errors: those of CheckpointReader;
// kUnavailable, it cannot be written.
absl::Status ExportModel(Storage* storage, const Manifest& manifest,
                         const std::string& file);

// `nereusctl export`.
class ExportCommand final : public Command {
 public:
  CLI::App* Register(CLI::App& app) override;
  int Run(std::ostream& out, std::ostream& err) override;

 private:
  std::string folder_;
  std::string file_;
  std::string round_ = "latest";
};

}  // namespace nereus
