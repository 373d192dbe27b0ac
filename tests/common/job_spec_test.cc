// The table of a job's options: each option alone, and the pairs that exclude
// each other. job_file_test.cc tests files and command lines.

#include "common/protocol/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Sets options by their names: {"update", "adam"}.
JobSpec SpecWith(const std::vector<std::pair<std::string, std::string>>& all) {
  JobSpec spec;
  for (const auto& [name, text] : all) {
    const JobOption* const option = FindJobOption(name);
    EXPECT_NE(option, nullptr) << name;
    if (option == nullptr) continue;
    const absl::Status set = option->set(text, spec);
    EXPECT_TRUE(set.ok()) << name << ": " << set;
  }
  return spec;
}

std::string RefusalOf(const std::string& name, const std::string& text) {
  JobSpec spec;
  const absl::Status set = FindJobOption(name)->set(text, spec);
  EXPECT_EQ(set.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FindJobOption(name)->get(spec),
            FindJobOption(name)->get(JobSpec()));
  return std::string(set.message());
}

TEST(JobOptionTableTest, EachOptionHasAUniqueNameAndAHelp) {
  std::set<std::string> names;
  for (const JobOption& option : JobOptionTable()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_THAT(option.help, Not(IsEmpty())) << option.name;
    EXPECT_THAT(option.values, Not(IsEmpty())) << option.name;
    EXPECT_EQ(FindJobOption(option.name), &option);
  }
  EXPECT_EQ(FindJobOption("lerning-rate"), nullptr);
}

TEST(JobOptionTableTest, DefaultsAreAValidJob) {
  EXPECT_TRUE(JobSpec().Validate().ok()) << JobSpec().Validate();
}

// A value that differs from the default, for each option.
struct Value {
  const char* name;
  const char* text;
};

class JobOptionTest : public testing::TestWithParam<Value> {};

TEST_P(JobOptionTest, OptionKeepsItsValue) {
  const JobOption& option = *FindJobOption(GetParam().name);
  EXPECT_NE(option.get(JobSpec()), GetParam().text);
  const JobSpec spec = SpecWith({{GetParam().name, GetParam().text}});
  EXPECT_EQ(option.get(spec), GetParam().text);
  for (const JobOption& other : JobOptionTable()) {
    if (other.name == option.name) continue;
    EXPECT_EQ(other.get(spec), other.get(JobSpec())) << other.name;
  }
}

constexpr Value kValues[] = {
    {"job-name", "mnist"},
    {"workers", "8"},
    {"min-workers", "3"},
    {"max-workers", "16"},
    {"servers", "4"},
    {"scheme", "ring"},
    {"cost", "bytes"},
    {"wire", "bf16"},
    {"checkpoints-kept", "7"},
    {"lease", "4.5"},
    {"optimizer", "worker"},
    {"update", "adam"},
    {"learning-rate", "0.1"},
    {"learning-rate-schedule", "0:0.1,500:1,9000:0:cosine,9500:0.3:hold"},
    {"momentum", "0.12345679"},
    {"weight-decay", "0.0003"},
    {"beta1", "0.8"},
    {"beta2", "0.9999"},
    {"epsilon", "1e-07"},
    {"overlap", "none"},
    {"fusion", "65536"},
    {"chunk", "524288"},
    {"quorum", "majority"},
    {"staleness", "5"},
    {"resync", "100"},
    {"sparsity", "0.85"},
    {"block", "4096"},
    {"dense-steps", "12"},
    {"deterministic", "on"},
    {"backup", "1"},
    {"nan", "skip"},
    {"loss-scale", "dynamic"},
    {"checkpoint-every", "1000"},
};

INSTANTIATE_TEST_SUITE_P(All, JobOptionTest, testing::ValuesIn(kValues),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(JobOptionTableTest, EachOptionIsTested) {
  EXPECT_EQ(std::size(kValues), JobOptionTable().size());
}

// A learning rate with a wrong last bit would train other parameters.
TEST(JobOptionTableTest, NumbersKeepTheirLastBit) {
  JobSpec spec;
  spec.options.optimizer.learning_rate = 0.1F / 3;
  spec.options.sparsity.share = 1.0 / 3;
  JobSpec read;
  for (const JobOption& option : JobOptionTable()) {
    ASSERT_TRUE(option.set(option.get(spec), read).ok()) << option.name;
  }
  EXPECT_EQ(read.options, spec.options);
}

TEST(JobOptionTableTest, BadValueIsRefusedWithTheAllowedValues) {
  EXPECT_EQ(RefusalOf("update", "sdg"),
            "\"sdg\" is not one of sgd, nesterov, adam, adamw");
  EXPECT_EQ(RefusalOf("staleness", "-1"),
            "\"-1\" is not a number from 0 to 70368744177664");
  EXPECT_EQ(RefusalOf("momentum", "1"),
            "\"1\" is not a number from 0 to below 1");
  EXPECT_EQ(RefusalOf("workers", "4.5"),
            "\"4.5\" is not a number from 1 to 65536");
  EXPECT_EQ(RefusalOf("scheme", "rings"),
            "\"rings\" is not one of auto, server, factor, ring, direct");
  EXPECT_THAT(RefusalOf("fusion", "some"), HasSubstr("off, auto or a number"));
  EXPECT_THAT(RefusalOf("fusion", "-2"), HasSubstr("off, auto or a number"));
  for (const char* const nothing : {"", " ", "nan", "inf", "1e999", "0x"}) {
    EXPECT_THAT(RefusalOf("learning-rate", nothing), HasSubstr("is not"));
  }
  EXPECT_THAT(RefusalOf("wire", std::string(1000, '\n')), Not(HasSubstr("\n")));
}

TEST(JobOptionTableTest, BlockIsAutomaticOrInRange) {
  EXPECT_EQ(SpecWith({{"block", "0"}}).options.sparsity.block_elements,
            kBlockAuto);
  EXPECT_THAT(RefusalOf("block", "255"), HasSubstr("from 256 to 65536"));
}

TEST(JobOptionTableTest, ChunkIsAutomaticOrInRange) {
  EXPECT_EQ(SpecWith({{"chunk", "0"}}).options.chunk_bytes, kChunkAuto);
  EXPECT_THAT(RefusalOf("chunk", "4096"), HasSubstr("from 262144 to 2097152"));
}

TEST(JobOptionTableTest, SparseJobsHaveTheLargestChunks) {
  JobOptions options;
  EXPECT_EQ(ChunkBytesOf(options), kChunkAuto);
  options.chunk_bytes = kChunkBytesMin;
  EXPECT_EQ(ChunkBytesOf(options), kChunkBytesMin);
  EXPECT_EQ(RulesFor(options, {}).chunk_bytes, kChunkBytesMin);
  options.sparsity.share = 0.9;
  EXPECT_EQ(ChunkBytesOf(options), kChunkBytesMax);
}

// Options that exclude each other.

struct Pair {
  const char* name;
  std::vector<std::pair<std::string, std::string>> options;
  const char* message;
};

class ExclusionTest : public testing::TestWithParam<Pair> {};

TEST_P(ExclusionTest, ExclusivePairIsRefusedWithValuesAndReason) {
  EXPECT_THAT(SpecWith(GetParam().options).Validate(),
              IsInvalidArgument(GetParam().message));
}

TEST_P(ExclusionTest, EachOptionOfAPairIsAllowedAlone) {
  for (size_t i = 0; i < GetParam().options.size(); ++i) {
    auto others = GetParam().options;
    others.erase(others.begin() + static_cast<int64_t>(i));
    const absl::Status status = SpecWith(others).Validate();
    if (status.ok()) return;
  }
  ADD_FAILURE() << "no part of " << GetParam().name << " is allowed";
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, ExclusionTest,
    testing::Values(
        Pair{"WorkersOptimizerAndQuorum",
             {{"optimizer", "worker"}, {"quorum", "solo"}},
             "--optimizer=worker does not go with --quorum=solo: a worker"},
        Pair{"SkippedStepsAndQuorum",
             {{"nan", "skip"}, {"quorum", "majority"}},
             "--nan=skip does not go with --quorum=majority: the verdict"},
        Pair{"DeterministicAndQuorum",
             {{"deterministic", "on"}, {"quorum", "solo"}},
             "--deterministic=on does not go with --quorum=solo"},
        Pair{"BackupAndQuorum",
             {{"servers", "2"}, {"backup", "1"}, {"quorum", "solo"}},
             "--backup=1 does not go with --quorum=solo"},
        Pair{"ResyncAndEach",
             {{"quorum", "each"}, {"resync", "4"}},
             "--resync=4 does not go with --quorum=each"},
        Pair{"WorkersOptimizerAndSparsity",
             {{"optimizer", "worker"}, {"sparsity", "0.9"}},
             "--optimizer=worker does not go with --sparsity=0.9"},
        Pair{"AdamAndSparsity",
             {{"update", "adam"}, {"sparsity", "0.9"}},
             "--update=adam does not go with --sparsity=0.9"},
        Pair{"SkippedStepsAndSparsity",
             {{"nan", "skip"}, {"sparsity", "0.9"}},
             "--nan=skip does not go with --sparsity=0.9"},
        Pair{"QuorumAndSparsity",
             {{"quorum", "solo"}, {"sparsity", "0.9"}},
             "--quorum=solo does not go with --sparsity=0.9"},
        Pair{"LossScaleWithoutSkippedSteps",
             {{"loss-scale", "dynamic"}},
             "--loss-scale=dynamic does not go with --nan=fail"},
        Pair{"BackupOnOneServer",
             {{"backup", "1"}},
             "--backup=1 needs two servers or more: --servers is 1"},
        Pair{"FewerWorkersThanItGoesOnWith",
             {{"workers", "2"}, {"min-workers", "3"}},
             "--min-workers is 3, --workers only 2"},
        Pair{"FewerWorkersThanItStartsWith",
             {{"workers", "3"}, {"max-workers", "2"}},
             "--max-workers is 2, --workers is 3"}),
    [](const auto& info) { return std::string(info.param.name); });

// Descriptions of jobs.

TEST(JobSpecTest, IneffectiveOptionsAreNotDescribed) {
  const std::string all = DescribeJobSpec(JobSpec(), /*told=*/false);
  EXPECT_THAT(all, AllOf(HasSubstr("workers 1, "), HasSubstr("update sgd, "),
                         HasSubstr("momentum 0.9"), Not(HasSubstr("beta1")),
                         Not(HasSubstr("staleness"))));
  const JobSpec adam = SpecWith({{"update", "adam"}, {"quorum", "solo"}});
  EXPECT_THAT(DescribeJobSpec(adam, /*told=*/true),
              AllOf(HasSubstr("beta1 0.9"), HasSubstr("staleness 32"),
                    Not(HasSubstr("momentum")), Not(HasSubstr("workers "))));
}

}  // namespace
}  // namespace nereus
