#include "common/protocol/lineup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/protocol/job.h"

namespace nereus {
namespace {

using testing::ElementsAre;

// Returns the seats of ranks 0 to `ranks` - 1.
std::vector<int> Seats(const Lineup& lineup, int ranks) {
  std::vector<int> seats;
  for (int rank = 0; rank < ranks; ++rank) seats.push_back(lineup.SeatOf(rank));
  return seats;
}

TEST(LineupTest, UnevenHostsAreOrderedByTheirLowestRank) {
  // Host 7 has three workers, host 3 one, host 5 two.
  const Lineup lineup(std::vector<EpochWorker>{
      {0, 0, 7}, {1, 0, 3}, {2, 0, 5}, {4, 0, 7}, {5, 0, 5}, {9, 0, 7}});
  EXPECT_EQ(lineup.workers(), 6);
  ASSERT_EQ(lineup.hosts(), 3);
  EXPECT_THAT(lineup.at(0), ElementsAre(0, 4, 9));
  EXPECT_THAT(lineup.at(1), ElementsAre(1));
  EXPECT_THAT(lineup.at(2), ElementsAre(2, 5));

  // Worker 9 is the third worker of its host, and worker 5 the second of its.
  EXPECT_EQ(lineup.HostOf(9), 0);
  EXPECT_EQ(lineup.LocalOf(9), 2);
  EXPECT_EQ(lineup.HostOf(5), 2);
  EXPECT_EQ(lineup.LocalOf(5), 1);
  EXPECT_THAT(Seats(lineup, 10), ElementsAre(0, 3, 4, -1, 1, 5, -1, -1, -1, 2));
}

TEST(LineupTest, RanksOutsideTheLineupHaveNoHostAndNoSeat) {
  const Lineup lineup = Lineup::Singles(2);
  for (const int rank : {-1, 2, 7}) {
    EXPECT_EQ(lineup.HostOf(rank), -1);
    EXPECT_EQ(lineup.LocalOf(rank), -1);
    EXPECT_EQ(lineup.SeatOf(rank), -1);
  }
  EXPECT_EQ(Lineup().SeatOf(0), -1);
}

TEST(LineupTest, EachWorkerWithoutAHostNumberCountsAsAHost) {
  const Lineup lineup(
      std::vector<EpochWorker>{{0, 0}, {2, 0, 1}, {3, 0}, {5, 0, 1}});
  ASSERT_EQ(lineup.hosts(), 3);
  EXPECT_THAT(lineup.at(0), ElementsAre(0));
  EXPECT_THAT(lineup.at(1), ElementsAre(2, 5));
  EXPECT_THAT(lineup.at(2), ElementsAre(3));
}

TEST(LineupTest, WithOneWorkerOnEachHostSeatsArePositions) {
  const Lineup lineup = Lineup::Singles(4);
  ASSERT_EQ(lineup.hosts(), 4);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(lineup.HostOf(rank), rank);
    EXPECT_EQ(lineup.LocalOf(rank), 0);
    EXPECT_EQ(lineup.SeatOf(rank), rank);
    EXPECT_EQ(lineup.Carrier(rank, /*slot=*/17), rank);
  }
}

TEST(LineupTest, EachLocalWorkerCarriesInItsSlots) {
  const Lineup lineup(
      std::vector<EpochWorker>{{0, 0, 0}, {1, 0, 1}, {2, 0, 0}, {3, 0, 0}});
  EXPECT_EQ(lineup.Carrier(0, 0), 0);
  EXPECT_EQ(lineup.Carrier(0, 1), 2);
  EXPECT_EQ(lineup.Carrier(0, 5), 3);
  EXPECT_EQ(lineup.Carrier(1, 5), 1);
}

// Layers larger and smaller than a full chunk; only the last has factors.
std::vector<LayerSpec> Layers() {
  const auto layer = [](const std::string& name, int64_t elements,
                        bool has_factors) {
    return LayerSpec{
        name,
        has_factors ? LayerKind::kFullyConnected : LayerKind::kConvolution,
        1,
        elements,
        elements,
        1,
        has_factors};
  };
  constexpr int64_t kFull = kChunkElementsMax;
  return {
      layer("conv1", kFull * 3 + 5, false), layer("norm1", 64, false),
      layer("conv2", kFull / 2, false),     layer("norm2", 64, false),
      layer("conv3", kFull * 2, false),     layer("fc", kFull * 4 + 9, true)};
}

class SeatingTest : public testing::Test {
 protected:
  Seating Seat(const std::vector<EpochWorker>& workers) const {
    return Seating(workers, layers_, placement_);
  }

  const std::vector<LayerSpec> layers_ = Layers();
  const Placement placement_ =
      *Placement::Make(layers_, /*shards=*/3, kChunkBytesMax);
};

TEST_F(SeatingTest, JoinersHaveASeatFromTheirFirstStepOn) {
  // Worker 4 joins a host that has workers, worker 6 brings a new host.
  const Seating seating =
      Seat({{0, 0, 0}, {1, 0, 1}, {2, 0, 0}, {4, 8, 1}, {6, 10, 2}});

  EXPECT_EQ(seating.LineupOf(-1).workers(), 0);
  const Lineup& first = seating.LineupOf(7);
  EXPECT_EQ(&seating.LineupOf(0), &first);
  ASSERT_EQ(first.hosts(), 2);
  EXPECT_THAT(first.at(0), ElementsAre(0, 2));
  EXPECT_THAT(first.at(1), ElementsAre(1));
  EXPECT_THAT(Seats(first, 7), ElementsAre(0, 2, 1, -1, -1, -1, -1));

  const Lineup& second = seating.LineupOf(8);
  EXPECT_EQ(&seating.LineupOf(9), &second);
  ASSERT_EQ(second.hosts(), 2);
  EXPECT_THAT(second.at(1), ElementsAre(1, 4));
  EXPECT_EQ(second.Carrier(1, 1), 4);

  const Lineup& last = seating.LineupOf(1000);
  ASSERT_EQ(last.hosts(), 3);
  EXPECT_EQ(last.workers(), 5);
  EXPECT_THAT(last.at(2), ElementsAre(6));
  EXPECT_THAT(Seats(last, 7), ElementsAre(0, 2, 1, -1, 3, -1, 4));
}

TEST_F(SeatingTest, JoinersThatStartTogetherEnterTogether) {
  const Seating seating = Seat({{0, 0}, {1, 5}, {2, 5}});
  EXPECT_EQ(seating.LineupOf(4).workers(), 1);
  EXPECT_EQ(seating.LineupOf(5).workers(), 3);
}

TEST_F(SeatingTest, WithoutWorkersLineupsAreEmpty) {
  EXPECT_EQ(Seating().LineupOf(3).workers(), 0);
  EXPECT_EQ(Seat({}).LineupOf(3).hosts(), 0);
}

TEST_F(SeatingTest, WithoutMatesEverySlotIsZero) {
  const Seating seating = Seat({{0, 0}, {1, 0}});
  for (const Chunk& chunk : placement_.chunks()) {
    EXPECT_EQ(seating.SlotOf(chunk.layer, chunk.index), 0);
  }
}

TEST_F(SeatingTest, SlotsSpreadElementsWithAndWithoutFactors) {
  const Seating seating = Seat({{0, 0, 0}, {1, 0, 0}});
  for (const int local_count : {2, 3, 4, 7}) {
    for (const bool has_factors : {false, true}) {
      std::vector<int64_t> loads(local_count);
      for (const Chunk& chunk : placement_.chunks()) {
        if (layers_[chunk.layer].has_factors != has_factors) continue;
        const int64_t slot = seating.SlotOf(chunk.layer, chunk.index);
        loads[slot % local_count] += chunk.length;
      }
      const auto [least, most] =
          std::minmax_element(loads.begin(), loads.end());
      EXPECT_LE(*most - *least, kChunkElementsMax)
          << local_count << " workers, factors: " << has_factors;
    }
  }
}

// Returns a job with the layers above, all with `scheme` but for "fc".
JobPtr JobOf(Scheme scheme, const std::vector<EpochWorker>& workers) {
  Job job;
  job.epoch = 1;
  job.workers = workers;
  job.history.first_step = workers.back().first_step;
  job.layers = Layers();
  job.routes.assign(job.layers.size(), {scheme, WireType::kFloat32});
  job.routes.back().scheme = Scheme::kFactor;
  job.options.chunk_bytes = kChunkBytesMax;
  const absl::StatusOr<JobPtr> made = MakeJob(job, /*shards=*/2);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

TEST(JobLineupTest, WorkersOfAHostShareTheElementsThatGoToServers) {
  const JobPtr job = JobOf(Scheme::kServer, {{0, 0, 0}, {1, 0, 0}});
  std::vector<int64_t> loads(2);
  for (const Chunk& chunk : job->placement.chunks()) {
    if (job->routes[chunk.layer].scheme == Scheme::kFactor) continue;
    loads[job->SlotOf(chunk.layer, chunk.index, 2)] += chunk.length;
    EXPECT_EQ(job->SlotOf(chunk.layer, chunk.index, 1), 0);
  }
  EXPECT_LE(std::abs(loads[0] - loads[1]), kChunkElementsMax);
}

TEST(JobLineupTest, ConsecutiveUnitsOfRingsAndFactorsHaveConsecutiveSlots) {
  const JobPtr job = JobOf(Scheme::kRing, {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}});
  for (const int layer : {0, 5}) {
    const int first = job->SlotOf(layer, 0, 3);
    for (int64_t unit = 1; unit < 100; ++unit) {
      EXPECT_EQ(job->SlotOf(layer, unit, 3), (first + unit) % 3);
    }
  }
}

}  // namespace
}  // namespace nereus
