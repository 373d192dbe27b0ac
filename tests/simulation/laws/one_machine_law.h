#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/lineup.h"
#include "tests/simulation/laws/law.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// Law 3, same as one machine: a deterministic job has, after every round and on
// every worker, the bits that one machine has which adds up the gradients of
// all workers itself, in the order of the line-up or in that of the ring, and
// updates once.
//
// The law computes the whole job a second time, layer by layer. It holds, and
// is added by the tests that want it, where the servers run the optimizer on
// float32 and the workers stay the same.
class OneMachineLaw final : public Law {
 public:
  // `lineup`: the line-up of all rounds.
  OneMachineLaw(Workload workload, Lineup lineup, const JobOptions& options);

  absl::string_view name() const override {
    return "the bits are those of one machine";
  }
  void Observe(const ClusterEvent& event) override;

  // Number of results that were compared.
  int64_t checked_count() const { return checked_count_; }

 private:
  // A layer on the one machine.
  struct Layer {
    int64_t round = kInitialRound;  // Last round that is applied.
    std::vector<float> parameters;
    std::vector<float> state;  // Arrays of the optimizer, end to end.
  };

  // Gradient of a fully connected layer, as factors.
  struct Factors {
    std::vector<float> output_gradient;
    std::vector<float> input;
  };

  // Applies the next round of a layer.
  void Advance(int layer, const Route& route);
  Factors FactorsOf(int rank, int64_t step, int layer) const;
  std::vector<float> Product(const Factors& factors, int64_t rows, int layer,
                             float scale) const;
  // Gradient of all workers, from their factors behind one another.
  std::vector<float> StackedProduct(int64_t step, int layer, float scale) const;
  std::vector<float> GradientOf(int rank, int64_t step, int layer) const;
  // Sum of the gradients of a host's workers, by rank.
  std::vector<float> HostSum(int host, int64_t step, int layer) const;
  // Sum of all hosts' sums, in the order in which the job adds them.
  std::vector<float> Sum(int64_t step, int layer, bool is_ring) const;

  const Workload workload_;
  const Lineup lineup_;
  const JobOptions options_;
  std::vector<Layer> layers_;
  int64_t checked_count_ = 0;
};

}  // namespace nereus
