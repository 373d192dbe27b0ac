#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/lineup.h"
#include "tests/simulation/laws/law.h"
#include "tests/simulation/simulation_options.h"

namespace nereus {

// Law 3, same as one machine: after every round, every worker of a
// deterministic job has the bits that a single machine would have. The single
// machine adds up the gradients of all workers, in the order of the line-up or
// of the ring, and updates once.
//
// The law computes the whole job a second time, layer by layer. It holds only
// in jobs with float32 frames, with OptimizerPlace::kServer, and with the same
// workers in all rounds. Tests of such jobs add it.
class OneMachineLaw final : public Law {
 public:
  // `lineup`: line-up of every round.
  OneMachineLaw(Workload workload, Lineup lineup, const JobOptions& options);

  absl::string_view name() const override {
    return "the bits are those of one machine";
  }
  void Observe(const ClusterEvent& event) override;

  // Number of results that were compared.
  int64_t checked_count() const { return checked_count_; }

 private:
  // Layer on the single machine.
  struct Layer {
    int64_t round = kInitialRound;  // Last round that is applied.
    std::vector<float> parameters;
    std::vector<float> state;  // Arrays of the optimizer, one after the other.
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
  // Returns the sum of all workers' gradients times `scale`, as one product of
  // their stacked factors and the sum of gradients that workers multiply
  // themselves.
  std::vector<float> StackedProduct(int64_t step, int layer, float scale) const;
  std::vector<float> GradientOf(int rank, int64_t step, int layer) const;
  // Returns the sum of the gradients of a host's workers, added by rank.
  std::vector<float> HostSum(int host, int64_t step, int layer) const;
  // Returns the sum of all hosts' sums, added in the order of the job.
  std::vector<float> Sum(int64_t step, int layer, bool is_ring) const;

  const Workload workload_;
  const Lineup lineup_;
  const JobOptions options_;
  std::vector<Layer> layers_;
  int64_t checked_count_ = 0;
};

}  // namespace nereus
