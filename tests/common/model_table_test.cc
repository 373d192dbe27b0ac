// Tables of layers: the known models against published parameter counts, and
// the parser of tables. BadTableTest has a row for each mistake in a table.

#include "common/plan/model_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kHeader[] = "name,kind,m,n,parameters,rows_per_sample\n";

std::vector<LayerSpec> Load(const std::string& name, int64_t batch = 1) {
  absl::StatusOr<std::vector<LayerSpec>> layers = LoadModel(name, batch);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return layers.ok() ? *std::move(layers) : std::vector<LayerSpec>();
}

TEST(ModelTableTest, KnownModelsAreSorted) {
  EXPECT_THAT(ModelNames(),
              ElementsAre("alexnet", "bert-base", "googlenet", "inception-v3",
                          "resnet-152", "resnet-50", "vgg19", "vgg19-22k"));
}

struct Total {
  const char* model;
  int64_t parameters;
  int64_t fc_weights;
  std::map<LayerKind, int> layers;
};

class ModelTotalTest : public testing::TestWithParam<Total> {};

TEST_P(ModelTotalTest, ParametersMatchThePublishedCount) {
  int64_t parameters = 0;
  int64_t fc_weights = 0;
  std::map<LayerKind, int> layers;
  for (const LayerSpec& layer : Load(GetParam().model)) {
    parameters += layer.parameters;
    ++layers[layer.kind];
    if (layer.kind == LayerKind::kFullyConnected) {
      fc_weights += layer.m * layer.n;
      EXPECT_EQ(layer.parameters, layer.m * layer.n + layer.m) << layer.name;
    }
  }
  EXPECT_EQ(parameters, GetParam().parameters);
  EXPECT_EQ(fc_weights, GetParam().fc_weights);
  EXPECT_EQ(layers, GetParam().layers);
}

constexpr LayerKind kFc = LayerKind::kFullyConnected;
constexpr LayerKind kConv = LayerKind::kConvolution;

INSTANTIATE_TEST_SUITE_P(
    Table, ModelTotalTest,
    testing::Values(
        Total{"alexnet", 60965224, 58621952, {{kFc, 3}, {kConv, 5}}},
        Total{"vgg19", 143667240, 123633664, {{kFc, 3}, {kConv, 16}}},
        Total{"vgg19-22k", 229052817, 208998400, {{kFc, 3}, {kConv, 16}}},
        Total{"googlenet", 6998552, 1024000, {{kFc, 1}, {kConv, 57}}},
        Total{"inception-v3", 23834568, 2048000, {{kFc, 1}, {kConv, 94}}},
        Total{"resnet-50", 25557032, 2048000, {{kFc, 1}, {kConv, 53}}},
        Total{"resnet-152", 60192808, 2048000, {{kFc, 1}, {kConv, 155}}},
        // 12 x (4 x 768 x 768 + 2 x 768 x 3072) + 2 x 768 x 768 + 2 x 768.
        Total{"bert-base",
              110106428,
              86115840,
              {{kFc, 12 * 6 + 3},
               {LayerKind::kEmbedding, 3},
               {LayerKind::kVector, 1 + 12 * 2 + 2}}}),
    [](const auto& info) {
      std::string name = info.param.model;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Parameters of the layers whose names begin with a prefix.
using Sum = std::pair<const char*, int64_t>;

struct Stages {
  const char* model;
  std::vector<Sum> sums;
};

const Stages kStages[] = {
    {"alexnet",
     {Sum{"conv1", 34944}, Sum{"conv2", 307456}, Sum{"conv3", 885120},
      Sum{"conv4", 663936}, Sum{"conv5", 442624}, Sum{"fc6", 37752832},
      Sum{"fc7", 16781312}, Sum{"fc8", 4097000}}},
    {"vgg19",
     {Sum{"conv1_", 1792 + 36928}, Sum{"conv2_", 73856 + 147584},
      Sum{"conv3_", 295168 + 3 * 590080}, Sum{"conv4_", 1180160 + 3 * 2359808},
      Sum{"conv5_", 4 * 2359808}, Sum{"fc6", 102764544}}},
    {"vgg19-22k", {Sum{"fc8", 89482577}}},
    {"googlenet",
     {Sum{"conv", 9472 + 4160 + 110784}, Sum{"inception_3a", 163696},
      Sum{"inception_3b", 388736}, Sum{"inception_4a", 376176},
      Sum{"inception_4b", 449160}, Sum{"inception_4c", 510104},
      Sum{"inception_4d", 605376}, Sum{"inception_4e", 868352},
      Sum{"inception_5a", 1043456}, Sum{"inception_5b", 1444080},
      Sum{"loss3", 1025000}}},
    {"inception-v3",
     {Sum{"Conv2d", 928 + 9280 + 18560 + 5280 + 138624},
      Sum{"Mixed_5b", 255904}, Sum{"Mixed_5c", 277472}, Sum{"Mixed_5d", 285152},
      Sum{"Mixed_6a", 1153280}, Sum{"Mixed_6b", 1297408},
      Sum{"Mixed_6c", 1691008}, Sum{"Mixed_6d", 1691008},
      Sum{"Mixed_6e", 2141952}, Sum{"Mixed_7a", 1698304},
      Sum{"Mixed_7b", 5044608}, Sum{"Mixed_7c", 6076800}, Sum{"fc", 2049000}}},
    {"resnet-50",
     {Sum{"conv1", 9536}, Sum{"layer1.", 215808}, Sum{"layer1.0.", 75008},
      Sum{"layer1.1.", 70400}, Sum{"layer2.", 1219584}, Sum{"layer3.", 7098368},
      Sum{"layer4.", 14964736}, Sum{"fc", 2049000}}},
    {"resnet-152",
     {Sum{"layer1.", 215808}, Sum{"layer2.", 2339840}, Sum{"layer3.", 40613888},
      Sum{"layer4.", 14964736}}},
    {"bert-base",
     {Sum{"bert.embeddings.", 23440896 + 393216 + 1536 + 1536},
      Sum{"bert.encoder.layer.0.", 7087872},
      Sum{"bert.encoder.layer.11.", 7087872}, Sum{"bert.pooler", 590592},
      Sum{"bert.", 109482240}, Sum{"cls.", 592128 + 30522 + 1538}}},
};

TEST(ModelStageTest, ParametersMatchThePublishedCount) {
  for (const Stages& stages : kStages) {
    const std::vector<LayerSpec> layers = Load(stages.model);
    for (const auto& [prefix, parameters] : stages.sums) {
      int64_t sum = 0;
      for (const LayerSpec& layer : layers) {
        if (absl::StartsWith(layer.name, prefix)) sum += layer.parameters;
      }
      EXPECT_EQ(sum, parameters) << stages.model << " " << prefix;
    }
  }
}

TEST(ModelTableTest, ConvolutionsWithNormalisationCountScaleAndShift) {
  for (const char* model : {"resnet-50", "resnet-152", "inception-v3"}) {
    for (const LayerSpec& layer : Load(model)) {
      if (layer.kind != kConv) continue;
      EXPECT_EQ(layer.parameters, layer.m * layer.n + 2 * layer.m)
          << model << " " << layer.name;
    }
  }
}

TEST(ModelTableTest, RowsGrowWithTheBatch) {
  const std::vector<LayerSpec> vgg = Load("vgg19", 32);
  EXPECT_EQ(vgg.front().rows, 224 * 224 * 32);
  EXPECT_EQ(vgg.back().rows, 32);

  for (const LayerSpec& layer : Load("bert-base", 64)) {
    if (absl::StrContains(layer.name, "encoder")) {
      EXPECT_EQ(layer.rows, 64 * 64) << layer.name;
    }
  }
}

TEST(ModelTableTest, LayersAreInForwardOrder) {
  const std::vector<LayerSpec> bert = Load("bert-base");
  ASSERT_FALSE(bert.empty());
  EXPECT_EQ(bert.front().name, "bert.embeddings.word_embeddings");
  EXPECT_EQ(bert.back().name, "cls.seq_relationship");
  EXPECT_EQ(bert[4].name, "bert.encoder.layer.0.attention.self.query");
}

TEST(ModelTableTest, UnknownModelIsRefusedWithTheKnownModels) {
  EXPECT_THAT(LoadModel("vgg91", 32).status(),
              IsNotFound("\"vgg91\", known are alexnet, bert-base, googlenet, "
                         "inception-v3, resnet-152, resnet-50, vgg19, "));
}

TEST(ModelTableTest, BatchIsBounded) {
  for (const int64_t batch : {int64_t{0}, int64_t{-1}, kBatchMax + 1}) {
    const absl::Status status = LoadModel("vgg19", batch).status();
    EXPECT_THAT(status, IsInvalidArgument(absl::StrCat("batch is ", batch)));
  }
  // The batch is within the bound, but conv1_1 has 50,176 rows per sample.
  EXPECT_THAT(std::string(LoadModel("vgg19", kBatchMax).status().message()),
              HasSubstr("50176 times the batch 1048576 is 52613349376 rows"));
}

TEST(ParseModelTableTest, CommentsAndBlankLinesAreSkippedAndCrLfIsAllowed) {
  const absl::StatusOr<std::vector<LayerSpec>> layers = ParseModelTable(
      absl::StrCat("# mine\r\n\r\n", kHeader,
                   "a b,fc,2,3,8,5\r\n# between\n\nc,vector,2,1,2,1"),
      10);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_THAT(*layers,
              ElementsAre(LayerSpec{"a b", kFc, 2, 3, 8, 50, true},
                          LayerSpec{"c", LayerKind::kVector, 2, 1, 2, 10}));
}

struct BadTable {
  const char* name;
  std::string text;
  const char* message;
};

class BadTableTest : public testing::TestWithParam<BadTable> {};

TEST_P(BadTableTest, BadTableIsRefusedWithLineAndColumn) {
  const absl::Status status =
      ParseModelTable(GetParam().text, 1 << 10).status();
  EXPECT_THAT(status, IsInvalidArgument(GetParam().message));
  EXPECT_LT(status.message().size(), 1000u);
}

std::string WithHeader(const std::string& rows) { return kHeader + rows; }

const BadTable kBadTableRows[] = {
    {"empty", "", "the text ends without the header"},
    {"comments_only", "# a\n# b\n", "line 3: the text ends without the header"},
    {"header_only", kHeader, "a model has 0 layers"},
    {"no_header", "fc,fc,2,3,6,1\n",
     "line 1: expected the header name,kind,m,n,parameters,"
     "rows_per_sample, got \"fc,fc,2,3,6,1\""},
    {"binary", std::string("\0\x7f\xff\x1b", 4),
     "got \"\\x00\\x7f\\xff\\x1b\""},
    {"endless_line", std::string(1 << 20, 'x'), "xxx...\""},
    {"too_few_columns", WithHeader("a,fc,2,3,6\n"),
     "line 2: \"a,fc,2,3,6\" has fewer than 6 columns"},
    {"too_many_columns", WithHeader("a,fc,2,3,6,1,\n"),
     "has more than 6 columns"},
    {"endless_columns", WithHeader(std::string(1 << 20, ',')), "line 2: \""},
    {"empty_name", WithHeader(",fc,2,3,6,1\n"),
     "line 2, column 1 (name): a layer has an empty name"},
    {"long_name", WithHeader(std::string(300, 'n') + ",fc,2,3,6,1\n"),
     "line 2, column 1 (name): "},
    {"repeated_name", WithHeader("a,fc,2,3,6,1\n#\na,conv,2,3,6,1\n"),
     "line 4, column 1 (name): \"a\" is also on line 2"},
    {"unknown_kind", WithHeader("a,pool,2,3,6,1\n"),
     "line 2, column 2 (kind): unknown layer kind \"pool\", known "
     "are fc, conv, embedding, vector, fc-tied"},
    {"word_for_m", WithHeader("a,fc,two,3,6,1\n"),
     "line 2, column 3 (m): \"two\" is not a whole number"},
    {"sign", WithHeader("a,fc,2,+3,6,1\n"), "line 2, column 4 (n): \"+3\""},
    {"space", WithHeader("a,fc,2, 3,6,1\n"), "line 2, column 4 (n): \" 3\""},
    {"empty_field", WithHeader("a,fc,2,,6,1\n"),
     "line 2, column 4 (n): \"\" is not"},
    {"zero", WithHeader("a,fc,2,3,0,1\n"),
     "line 2, column 5 (parameters): \"0\" is not"},
    {"number_overflows", WithHeader("a,fc,2,3,99999999999999999999,1\n"),
     "line 2, column 5 (parameters): \"9999"},
    {"product_overflows", WithHeader("a,fc,1099511627776,1099511627776,6,1\n"),
     "line 2, column 5 (parameters): layer a has 6 parameters"},
    {"half_a_bias", WithHeader("a,fc,2,3,7,1\n"),
     "line 2, column 5 (parameters): fully connected layer a"},
    {"too_many_rows", WithHeader("a,fc,2,3,6,1048577\n"),
     "line 2, column 6 (rows_per_sample): 1048577 times the "
     "batch 1024 is 1073742848 rows, at most 1073741824"},
    {"too_large_together",
     WithHeader("a,vector,1,1099511627776,1099511627776,1\n"
                "b,vector,1,1,1,1\n"),
     "the model has 1099511627777 parameters with layer b"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadTableTest, testing::ValuesIn(kBadTableRows),
                         [](const auto& info) { return info.param.name; });

TEST(ModelTableTest, TiedLayerMultipliesAndHasNoFactors) {
  const auto layers = ParseModelTable(
      "name,kind,m,n,parameters,rows_per_sample\n"
      "head,fc-tied,100,8,800,4\n",
      2);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->at(0).kind, LayerKind::kFullyConnected);
  EXPECT_FALSE(layers->at(0).has_factors);
  EXPECT_EQ(layers->at(0).rows, 8);
}

}  // namespace
}  // namespace nereus
