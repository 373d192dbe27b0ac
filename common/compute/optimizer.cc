#include "common/compute/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "common/compute/vectors.h"

namespace nereus {
namespace {

// Returns base^exponent by repeated squaring. Unlike std::pow, this gives the
// same bits on every machine, so all replicas take the same step.
double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

// Returns OK if low <= value < high.
absl::Status CheckRange(absl::string_view name, float value, float low,
                        float high) {
  // Both comparisons are false for NaN.
  if (value >= low && value < high) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", value, ", must be in [", low, ", ",
                              high, ")");
}

constexpr Named<UpdateRule> kRuleNames[] = {{UpdateRule::kSgd, "sgd"},
                                            {UpdateRule::kNesterov, "nesterov"},
                                            {UpdateRule::kAdam, "adam"},
                                            {UpdateRule::kAdamW, "adamw"}};

constexpr Named<RateCurve> kCurveNames[] = {{RateCurve::kLinear, "linear"},
                                            {RateCurve::kCosine, "cosine"},
                                            {RateCurve::kHold, "hold"}};

// Limits of a schedule. With a larger factor, the largest learning rate of a
// job would give adam an infinite step.
constexpr size_t kPointsMax = 64;
constexpr int64_t kScheduleStepMax = 1'000'000'000'000'000;
constexpr float kFactorMax = 10.0f;

// Returns cos(pi x) for 0 <= x <= 1, with an error below 1e-15. Unlike
// std::cos, this gives the same bits with every library.
double CosinePi(double x) {
  // Taylor's series of the sine around the middle, where the cosine is zero.
  const double angle = (0.5 - x) * 3.14159265358979323846;
  const double square = angle * angle;
  double sum = 0.0;
  for (int n = 21; n >= 3; n -= 2) sum = (sum + 1.0) * -square / (n * (n - 1));
  return angle * (sum + 1.0);
}

// Returns the shortest text that reads as the same number.
std::string ShortestText(float value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

// Returns the part of the way from one point to the next, in [0, 1], after
// `part` of the steps between them.
double WayAfter(double part, RateCurve curve) {
  if (curve == RateCurve::kHold) return 0.0;
  return curve == RateCurve::kLinear ? part : (1.0 - CosinePi(part)) / 2;
}

// Reads STEP:FACTOR[:CURVE].
absl::StatusOr<RateSchedule::Point> ParsePoint(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  RateSchedule::Point point;
  if (parts.size() < 2 || parts.size() > 3 ||
      !absl::SimpleAtoi(parts[0], &point.step) ||
      !absl::SimpleAtof(parts[1], &point.factor)) {
    return InvalidArgumentError("\"", text, "\" is not STEP:FACTOR[:CURVE]");
  }
  if (point.step < 0 || point.step > kScheduleStepMax) {
    return InvalidArgumentError("step ", point.step, " is not from 0 to ",
                                kScheduleStepMax);
  }
  // The comparison is false for NaN.
  if (!(point.factor >= 0.0f && point.factor <= kFactorMax)) {
    return InvalidArgumentError("factor ", parts[1], " is not from 0 to ",
                                kFactorMax);
  }
  if (parts.size() == 3) {
    point.curve = NEREUS_TRY(ParseName<kCurveNames>("curve", parts[2]));
  }
  return point;
}

constexpr Named<OptimizerPlace> kPlaceNames[] = {
    {OptimizerPlace::kServer, "server"}, {OptimizerPlace::kWorker, "worker"}};

}  // namespace

absl::string_view UpdateRuleName(UpdateRule rule) {
  return NameOf<kRuleNames>(rule);
}

absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name) {
  return ParseName<kRuleNames>("update rule", name);
}

bool HasMoments(UpdateRule rule) {
  return rule == UpdateRule::kAdam || rule == UpdateRule::kAdamW;
}

absl::string_view OptimizerPlaceName(OptimizerPlace place) {
  return NameOf<kPlaceNames>(place);
}

absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name) {
  return ParseName<kPlaceNames>("place for the optimizer", name);
}

absl::Status OptimizerOptions::Validate() const {
  absl::Status status =
      CheckRange("learning_rate", learning_rate, 0.0f, INFINITY);
  status.Update(CheckRange("momentum", momentum, 0.0f, 1.0f));
  status.Update(CheckRange("weight_decay", weight_decay, 0.0f, INFINITY));
  status.Update(CheckRange("beta1", beta1, 0.0f, 1.0f));
  status.Update(CheckRange("beta2", beta2, 0.0f, 1.0f));
  status.Update(CheckRange("epsilon", epsilon, 1e-30f, INFINITY));
  return status;
}

float RateSchedule::FactorAt(int64_t step) const {
  if (points.empty()) return 1.0f;
  const auto next = absl::c_find_if(
      points, [&](const Point& point) { return point.step > step; });
  if (next == points.begin()) return next->factor;
  const auto before = next - 1;
  if (next == points.end()) return before->factor;
  const double part = static_cast<double>(step - before->step) /
                      static_cast<double>(next->step - before->step);
  const double way = WayAfter(part, next->curve);
  const auto from = static_cast<double>(before->factor);
  const auto to = static_cast<double>(next->factor);
  return static_cast<float>(from + (to - from) * way);
}

std::string RateSchedule::ToString() const {
  if (points.empty()) return "none";
  return absl::StrJoin(points, ",", [](std::string* out, const Point& point) {
    absl::StrAppend(out, point.step, ":", ShortestText(point.factor));
    if (point.curve == RateCurve::kLinear) return;
    absl::StrAppend(out, ":", NameOf<kCurveNames>(point.curve));
  });
}

absl::StatusOr<RateSchedule> RateSchedule::Parse(absl::string_view text) {
  RateSchedule schedule;
  if (text == "none") return schedule;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const Point point = NEREUS_TRY(ParsePoint(part));
    if (!schedule.points.empty() && schedule.points.back().step >= point.step) {
      return InvalidArgumentError("step ", point.step, " comes after step ",
                                  schedule.points.back().step);
    }
    if (schedule.points.size() == kPointsMax) {
      return InvalidArgumentError("there are more than ", kPointsMax,
                                  " points");
    }
    schedule.points.push_back(point);
  }
  return schedule;
}

OptimizerOptions OptimizerAt(const OptimizerOptions& options,
                             const RateSchedule& schedule, int64_t step) {
  OptimizerOptions at = options;
  at.learning_rate *= schedule.FactorAt(step);
  return at;
}

int OptimizerStateCount(UpdateRule rule) { return HasMoments(rule) ? 2 : 1; }

absl::string_view OptimizerStateName(UpdateRule rule, int index) {
  if (!HasMoments(rule)) return "velocity";
  return index == 0 ? "first_moment" : "second_moment";
}

SgdStep SgdStepOf(const OptimizerOptions& options, float gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .weight_decay = options.weight_decay,
          .momentum = options.momentum,
          .learning_rate = options.learning_rate,
          .looks_ahead = options.rule == UpdateRule::kNesterov};
}

// Computes the corrections 1 - beta^t in double: in float32 they would lose
// most of their bits if t is small and beta is near 1.
AdamStep AdamStepOf(const OptimizerOptions& options, int64_t step,
                    float gradient_scale) {
  const bool decays_apart = options.rule == UpdateRule::kAdamW;
  return {.gradient_scale = gradient_scale,
          .weight_decay = decays_apart ? 0.0f : options.weight_decay,
          .kept = decays_apart
                      ? static_cast<float>(
                            1.0 - static_cast<double>(options.learning_rate) *
                                      options.weight_decay)
                      : 1.0f,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .step_size = static_cast<float>(
              options.learning_rate / (1.0 - Power(options.beta1, step + 1))),
          .second_scale =
              static_cast<float>(1.0 / (1.0 - Power(options.beta2, step + 1))),
          .epsilon = options.epsilon};
}

int64_t ApplyOptimizer(const OptimizerOptions& options, int64_t step,
                       int64_t length, float gradient_scale,
                       const float* gradient, const float* parameters,
                       float* state, float* updated) {
  const bool has_moments = HasMoments(options.rule);
  const bool is_finite =
      has_moments
          ? ApplyAdam(AdamStepOf(options, step, gradient_scale), length,
                      gradient, parameters, state, state + length, updated)
          : ApplySgd(SgdStepOf(options, gradient_scale), length, gradient,
                     parameters, state, updated);
  if (is_finite) return -1;
  const auto count = static_cast<size_t>(length);
  const int64_t parameter = FindNotFinite(updated, count);
  const int64_t moment =
      has_moments ? FindNotFinite(state + length, count) : -1;
  // The smaller index; -1 is the largest unsigned number.
  return static_cast<int64_t>(std::min(static_cast<uint64_t>(parameter),
                                       static_cast<uint64_t>(moment)));
}

}  // namespace nereus
