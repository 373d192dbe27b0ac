#include "common/compute/arithmetic.h"

#include <type_traits>
#include <variant>

#include "common/base/logging.h"
#include "common/compute/blocks.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/optimizer.h"
#include "common/compute/vectors.h"
#include "common/compute/wire_values.h"

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

void AddTo(const Buffer& norm, float sum) {
  if (norm.bytes() > 0) *norm.floats() += sum;
}

void Run(const AddNorm& add) {
  AddTo(add.norm,
        SumOfAbsolutes(add.values.float_count(), add.values.floats()));
}

void Run(const HoldGradient& hold) {
  const int64_t bytes = hold.gradient.bytes();
  NEREUS_CHECK(hold.parameters.bytes() == bytes &&
               hold.velocity.bytes() == bytes && hold.held.bytes() == bytes)
      << bytes << " of gradient, " << hold.parameters.bytes()
      << " of parameters, " << hold.velocity.bytes() << " and "
      << hold.held.bytes() << " held";
  AddTo(hold.norm, HoldBack(hold.momentum, hold.weight_decay, hold.first,
                            hold.gradient.float_count(), hold.gradient.floats(),
                            hold.parameters.floats(), hold.velocity.floats(),
                            hold.held.floats()));
}

void Run(const ChooseTravellers& choose) {
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
const Buffer& Target(const AddNorm& add) { return add.norm; }
const Buffer& Target(const HoldGradient& hold) { return hold.held; }
const Buffer& Target(const ChooseTravellers& choose) { return choose.after; }
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
