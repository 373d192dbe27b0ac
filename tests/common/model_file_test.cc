#include "common/flags/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

using testing::HasSubstr;

// Writes a table with one layer of 2^20 rows a sample. Returns its name.
std::string TableFile() {
  const std::string path = testing::TempDir() + "/table.csv";
  EXPECT_TRUE(WriteTextFile(path,
                            "name,kind,m,n,parameters,rows_per_sample\n"
                            "fc,fc,64,64,4160,1048576")
                  .ok());
  return path;
}

TEST(ModelFileTest, TableIsRead) {
  const auto layers = LoadModelOrFile(TableFile(), 3);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->front().rows, 3 << 20);
}

TEST(ModelFileTest, WrongBatchIsNoErrorOfTheFile) {
  for (const std::string& model : {TableFile(), std::string("vgg19")}) {
    const absl::Status status = LoadModelOrFile(model, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "batch is 0, not from 1 to 1048576");
  }
}

TEST(ModelFileTest, LayerWithTooManyRowsIsAnErrorOfTheFile) {
  const std::string path = TableFile();
  const absl::Status status = LoadModelOrFile(path, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(path + ": line 2, column 6 (rows_per_sample)"));
}

}  // namespace
}  // namespace nereus
