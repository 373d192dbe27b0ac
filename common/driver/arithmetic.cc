#include "common/driver/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
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

// Returns value `index` of `values`; below 0: no value.
BadValue ValueAt(const Buffer& values, int64_t index) {
  BadValue found;
  found.index = index;
  if (index >= 0) {
    // The values may begin at an address that is not a multiple of 4.
    std::memcpy(&found.value, values.data() + sizeof(float) * index,
                sizeof(found.value));
  }
  return found;
}

// Returns the first value of a gradient that must not be.
BadValue CheckGradient(const Buffer& values) {
  return ValueAt(
      values,
      FindTooLarge(values.data(), static_cast<size_t>(values.float_count())));
}

// Copies all bytes of `source`.
void Copy(const Buffer& source, const Buffer& destination) {
  NEREUS_CHECK(destination.bytes() == source.bytes())
      << destination.bytes() << " from " << source.bytes();
  if (source.bytes() == 0) return;
  CopyBytes(source.data(), static_cast<size_t>(source.bytes()),
            destination.data());
}

// Makes sum = (sum + addend) * factor, for float32 values.
void Add(const Buffer& addend, float factor, const Buffer& sum) {
  NEREUS_CHECK(sum.bytes() == addend.bytes())
      << sum.bytes() << " plus " << addend.bytes();
  AddScaled(addend.data(), sum.float_count(), factor, sum.data());
}

// Number of multiplications between two reports of progress. The factors of a
// block are packed anew, which is little beside so many multiplications.
constexpr int64_t kMultipliesPerBlock = int64_t{1} << 30;

}  // namespace

// If the addend asks for a check, float32 values are checked in a first pass
// and added in a second one, which finds them in the L2 cache.
// AccumulatePayload decodes, checks and adds encoded values in one pass.
BadValue ExecuteArithmetic(const Accumulate& accumulate) {
  const Addend& addend = accumulate.addend;
  const Buffer& sum = accumulate.sum;
  if (sum.data() == nullptr) return {};
  if (IsEncoded(addend.wire)) return AccumulatePayload(accumulate);
  if (addend.check.has_value()) {
    const BadValue found = CheckGradient(addend.payload);
    if (found.index >= 0) return found;
  }
  const Buffer& base = accumulate.base;
  if (base.bytes() > 0) {
    NEREUS_CHECK(base.bytes() == sum.bytes() &&
                 addend.payload.bytes() == sum.bytes())
        << base.bytes() << " plus " << addend.payload.bytes() << " to "
        << sum.bytes();
    AddScaledTo(base.data(), addend.payload.data(), sum.float_count(),
                accumulate.factor, sum.data());
    return {};
  }
  if (!accumulate.replaces) {
    Add(addend.payload, accumulate.factor, sum);
    return {};
  }
  Copy(addend.payload, sum);
  if (accumulate.factor != 1.0f) {
    ScaleTo(sum.floats(), sum.float_count(), accumulate.factor, sum.floats());
  }
  return {};
}

BadValue ExecuteArithmetic(const CheckValues& check) {
  if (check.values.data() == nullptr) return {};
  return CheckGradient(check.values);
}

void ExecuteArithmetic(const CopyValues& copy) {
  if (copy.destination.data() == nullptr) return;
  Copy(copy.source, copy.destination);
}

void ExecuteArithmetic(const ScaleValues& scale) {
  if (scale.values.data() == nullptr) return;
  float* const values = scale.values.floats();
  ScaleTo(values, scale.values.float_count(), scale.factor, values);
}

void ExecuteArithmetic(const RoundValues& round) {
  RoundToWire(round.wire, round.values);
}

void ExecuteArithmetic(const SplitGradient& split) {
  if (split.gradient.data() == nullptr) return;
  const int64_t bytes = split.gradient.bytes();
  // True if there is no memory for a residual. Then every piece must be sent.
  const bool all_travel = split.held.bytes() == 0;
  std::vector<int32_t> travelling;
  for (size_t k = 0; k < split.uses.size(); ++k) {
    const bool as_pushed = split.uses[k] == PieceUse::kTravels;
    NEREUS_CHECK(as_pushed || !all_travel) << "piece " << k;
    if (Travels(split.uses[k])) travelling.push_back(static_cast<int32_t>(k));
  }
  NEREUS_CHECK(split.gradient.float_count() == split.pieces.values &&
               split.parameters.bytes() == bytes &&
               std::ssize(split.uses) == split.pieces.Count() &&
               split.norms.float_count() == split.pieces.Count() &&
               (all_travel || (split.velocity.bytes() == bytes &&
                               split.held.bytes() == bytes)))
      << split.pieces.values << " values, " << bytes << " of gradient, "
      << split.parameters.bytes() << " of parameters, "
      << split.velocity.bytes() << " and " << split.held.bytes() << " held";
  float* const gradient = split.gradient.floats();
  SplitPieces(split.pieces, split.momentum, split.weight_decay,
              split.uses.data(), split.parameters.floats(), gradient,
              split.velocity.floats(), split.held.floats(),
              split.norms.floats());
  // Packs the pieces to send at the start of the gradient.
  GatherPieces(split.pieces, travelling.data(), std::ssize(travelling),
               gradient, gradient);
}

void ExecuteArithmetic(const SelectBlocks& select) {
  if (select.after.data() == nullptr) return;
  const int64_t bytes = select.norms.bytes();
  NEREUS_CHECK(select.before.bytes() == bytes &&
               select.after.bytes() == bytes &&
               select.count <= select.norms.float_count())
      << select.count << " of blocks with " << bytes << " bytes of norms, "
      << select.before.bytes() << " and " << select.after.bytes()
      << " of choices";
  ChooseBlocks(select.count, select.norms.float_count(), select.norms.floats(),
               select.before.floats(), select.after.floats());
}

BadValue ExecuteArithmetic(const UpdateParameters& update) {
  if (update.updated.data() == nullptr) return {};
  const int64_t bytes = update.parameters.bytes();
  NEREUS_CHECK(update.gradient.bytes() == bytes &&
               update.updated.bytes() == bytes &&
               update.state.bytes() ==
                   bytes * OptimizerStateCount(update.optimizer.rule))
      << bytes << " of parameters, " << update.gradient.bytes()
      << " of gradient, " << update.state.bytes() << " of state, "
      << update.updated.bytes() << " for the result";
  const int64_t bad =
      ApplyOptimizer(update.optimizer, update.step,
                     update.parameters.float_count(), update.gradient_scale,
                     update.gradient.floats(), update.parameters.floats(),
                     update.state.floats(), update.updated.floats());
  BadValue found;
  if (bad >= 0 && update.check.has_value()) {
    found = ValueAt(update.updated, bad);
    // The parameter is finite: its second moment is not.
    if (std::isfinite(found.value)) {
      found.value = std::numeric_limits<float>::infinity();
    }
  }
  if (update.clears_state) {
    std::fill_n(update.state.floats(), update.state.float_count(), 0.0f);
  }
  return found;
}

BadValue ExecuteArithmetic(const MultiplyFactors& multiply,
                           absl::FunctionRef<void(int64_t)> moved) {
  if (multiply.gradient.data() == nullptr) return {};
  // m, n: rows and columns of the gradient, without the bias.
  const int64_t m = multiply.m;
  const int64_t n = multiply.n;
  NEREUS_CHECK(multiply.output_gradient.float_count() == multiply.rows * m &&
               multiply.input.float_count() == multiply.rows * n &&
               multiply.gradient.float_count() ==
                   (multiply.end - multiply.begin) * n +
                       (multiply.makes_bias() ? m : 0))
      << multiply.rows << " rows, " << m << " x " << n << ", part from row "
      << multiply.begin << " to row " << multiply.end << ": "
      << multiply.output_gradient.float_count() << " and "
      << multiply.input.float_count() << " floats for "
      << multiply.gradient.float_count();
  const float* const output_gradient = multiply.output_gradient.floats();
  float* const gradient = multiply.gradient.floats();
  const bool has_addend = multiply.addend.bytes() > 0;
  const float scale = has_addend ? 1.0f : multiply.scale;
  const int64_t block = std::max<int64_t>(
      1, kMultipliesPerBlock / std::max<int64_t>(1, multiply.rows * n));
  for (int64_t begin = multiply.begin; begin < multiply.end; begin += block) {
    const int64_t end = std::min(begin + block, multiply.end);
    FactorGradientRows(multiply.rows, m, n, begin, end, scale, output_gradient,
                       multiply.input.floats(),
                       gradient + (begin - multiply.begin) * n);
    moved(end - multiply.begin);
  }
  if (multiply.makes_bias()) {
    FactorGradientBias(multiply.rows, m, scale, output_gradient,
                       gradient + (multiply.end - multiply.begin) * n);
  }
  if (has_addend) Add(multiply.addend, multiply.scale, multiply.gradient);
  if (!multiply.check.has_value()) return {};
  const Buffer& result = multiply.gradient;
  return ValueAt(
      result,
      FindNotFinite(result.data(), static_cast<size_t>(result.float_count())));
}

}  // namespace nereus
