#include "common/driver/arithmetic.h"

#include <cstddef>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/base/logging.h"
#include "common/compute/block_pieces.h"
#include "common/compute/blocks.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/optimizer.h"
#include "common/compute/vectors.h"
#include "common/driver/wire_values.h"

namespace nereus {
namespace {

void Run(const CopyValues& copy) {
  NEREUS_CHECK(copy.destination.bytes() == copy.source.bytes())
      << copy.destination.bytes() << " from " << copy.source.bytes();
  if (copy.destination.bytes() == 0) return;
  CopyBytes(copy.source.data(), static_cast<size_t>(copy.source.bytes()),
            copy.destination.data());
}

void Run(const AddValues& add) {
  NEREUS_CHECK(add.sum.bytes() == add.addend.bytes())
      << add.sum.bytes() << " plus " << add.addend.bytes();
  AddScaled(add.addend.data(), add.sum.float_count(), add.factor,
            add.sum.data());
}

void Run(const ScaleValues& scale) {
  float* const values = scale.values.floats();
  ScaleTo(values, scale.values.float_count(), scale.factor, values);
}

void Run(const RoundValues& round) { RoundToWire(round.wire, round.values); }

void Run(const SplitGradient& split) {
  const int64_t bytes = split.gradient.bytes();
  const bool all_travel = split.held.bytes() == 0;
  std::vector<int32_t> travelling;
  for (size_t k = 0; k < split.uses.size(); ++k) {
    const bool as_pushed = split.uses[k] == PieceUse::kTravels;
    NEREUS_CHECK(as_pushed || !all_travel) << "piece " << k;
    if (Travels(split.uses[k])) travelling.push_back(static_cast<int32_t>(k));
  }
  NEREUS_CHECK(
      split.gradient.float_count() == split.pieces.values &&
      split.parameters.bytes() == bytes &&
      static_cast<int64_t>(split.uses.size()) == split.pieces.Count() &&
      split.norms.float_count() == split.pieces.Count() &&
      (all_travel ||
       (split.velocity.bytes() == bytes && split.held.bytes() == bytes)))
      << split.pieces.values << " values, " << bytes << " of gradient, "
      << split.parameters.bytes() << " of parameters, "
      << split.velocity.bytes() << " and " << split.held.bytes() << " held";
  float* const gradient = split.gradient.floats();
  SplitPieces(split.pieces, split.momentum, split.weight_decay,
              split.uses.data(), split.parameters.floats(), gradient,
              split.velocity.floats(), split.held.floats(),
              split.norms.floats());
  GatherPieces(split.pieces, travelling.data(),
               static_cast<int64_t>(travelling.size()), gradient, gradient);
}

void Run(const SelectBlocks& choose) {
  ChooseBlocks(choose.count, choose.norms.float_count(), choose.norms.floats(),
               choose.before.floats(), choose.after.floats());
}

void Run(const UpdateParameters& update) {
  const int64_t bytes = update.parameters.bytes();
  NEREUS_CHECK(update.gradient.bytes() == bytes &&
               update.updated.bytes() == bytes &&
               update.state.bytes() ==
                   bytes * OptimizerStateCount(update.optimizer.rule))
      << bytes << " of parameters, " << update.gradient.bytes()
      << " of gradient, " << update.state.bytes() << " of state, "
      << update.updated.bytes() << " for the result";
  ApplyOptimizer(update.optimizer, update.step, update.parameters.float_count(),
                 update.gradient_scale, update.gradient.floats(),
                 update.parameters.floats(), update.state.floats(),
                 update.updated.floats());
}

void Run(const MultiplyFactors& multiply) {
  const int64_t m = multiply.m;
  const int64_t n = multiply.n;
  NEREUS_CHECK(multiply.output_gradient.float_count() == multiply.rows * m &&
               multiply.input.float_count() == multiply.rows * n &&
               multiply.gradient.float_count() ==
                   m * n + (multiply.bias ? m : 0))
      << multiply.rows << " rows, " << m << " x " << n << ": "
      << multiply.output_gradient.float_count() << " and "
      << multiply.input.float_count() << " floats for "
      << multiply.gradient.float_count();
  FactorGradient(multiply.rows, multiply.m, multiply.n, multiply.bias,
                 multiply.scale, multiply.output_gradient.floats(),
                 multiply.input.floats(), multiply.gradient.floats());
}

// The buffer that says whether an action has values at all.
const Buffer& Target(const CopyValues& copy) { return copy.destination; }
const Buffer& Target(const AddValues& add) { return add.sum; }
const Buffer& Target(const ScaleValues& scale) { return scale.values; }
const Buffer& Target(const RoundValues& round) { return round.values; }
const Buffer& Target(const SplitGradient& split) { return split.gradient; }
const Buffer& Target(const SelectBlocks& choose) { return choose.after; }
const Buffer& Target(const UpdateParameters& update) { return update.updated; }
const Buffer& Target(const MultiplyFactors& multiply) {
  return multiply.gradient;
}

}  // namespace

bool ExecuteArithmetic(const Action& action) {
  return std::visit(
      [](const auto& typed) {
        if constexpr (requires { Run(typed); }) {
          if (Target(typed).data() != nullptr) Run(typed);
          return true;
        } else {
          return false;
        }
      },
      action);
}

int64_t FindNotFinite(const CheckValues& check) {
  if (check.values.data() == nullptr) return -1;
  return FindNotFinite(check.values.data(),
                       static_cast<size_t>(check.values.float_count()));
}

}  // namespace nereus
