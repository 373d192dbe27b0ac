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

// Spreadsheets write the mark. Only the first one is a mark.
TEST(ModelFileTest, ByteOrderMarkIsLeftOut) {
  const std::string path = testing::TempDir() + "/marked.csv";
  const std::string table =
      "name,kind,m,n,parameters,rows_per_sample\r\nfc,fc,64,64,4160,2";
  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb\xbf" + table).ok());
  const auto layers = LoadModelOrFile(path, 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  EXPECT_EQ(layers->front().name, "fc");

  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb\xbf\xef\xbb\xbf" + table).ok());
  EXPECT_THAT(std::string(LoadModelOrFile(path, 1).status().message()),
              HasSubstr("line 1: expected the header"));
  ASSERT_TRUE(WriteTextFile(path, "\xef\xbb").ok());
  EXPECT_EQ(ReadTextFile(path).value_or(""), "\xef\xbb\n");
}

TEST(ModelFileTest, ComputeTraceIsReadAndItsErrorsNameTheFile) {
  const auto layers = LoadModelOrFile(TableFile(), 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  const std::string path = testing::TempDir() + "/times.json";
  ASSERT_TRUE(WriteTextFile(path,
                            "\xef\xbb\xbf{\"layers\": [{\"name\": \"fc\", "
                            "\"forward_seconds\": 1, "
                            "\"backward_seconds\": 2}]}")
                  .ok());
  const auto times = LoadComputeTrace(path, *layers);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->front().backward, absl::Seconds(2));

  ASSERT_TRUE(WriteTextFile(path, "{}").ok());
  const absl::Status status = LoadComputeTrace(path, *layers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": "));
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
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(path + ": line 2, column 6 (rows_per_sample)"));
}

}  // namespace
}  // namespace nereus
