#include "worker/machine/product_parts.h"

#include "common/plan/cost_model.h"

namespace nereus {

ProductParts::ProductParts(const WorkerLayer& layer, const Lineup& lineup)
    : m_(layer.spec().m),
      n_(layer.spec().n),
      bias_(layer.has_bias() ? layer.spec().m : 0) {
  const int host = lineup.HostOf(layer.rank);
  if (host < 0 || !layer.memory.multiplies_on_host) return;
  const auto local = std::ssize(lineup.at(host));
  if (SharesProduct(layer.spec(), lineup.workers(), local)) {
    count_ = static_cast<int>(local);
  }
}

ProductParts::Part ProductParts::at(int local) const {
  Part part;
  part.begin = m_ * local / count_;
  part.end = m_ * (local + 1) / count_;
  part.offset = part.begin * n_;
  part.elements = (part.end - part.begin) * n_ + (part.end == m_ ? bias_ : 0);
  return part;
}

int64_t ProductParts::FramesBefore(int local) const {
  int64_t frames = 0;
  for (int i = 0; i < local; ++i) frames += FrameCount(at(i).elements);
  return frames;
}

}  // namespace nereus
