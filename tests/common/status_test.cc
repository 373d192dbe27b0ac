#include "common/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace nereus {
namespace {

absl::StatusOr<int> Half(int number) {
  if (number % 2 != 0) {
    return InvalidArgumentError("number ", number, " is odd");
  }
  return number / 2;
}

absl::Status CheckEven(int number, int& calls) {
  ++calls;
  NEREUS_TRY(Half(number));
  ++calls;
  return absl::OkStatus();
}

absl::StatusOr<int> Quarter(int number) {
  const int half = NEREUS_TRY(Half(number));
  return NEREUS_TRY(Half(half));
}

absl::StatusOr<std::unique_ptr<std::string>> Name(bool exists) {
  if (!exists) {
    return NotFoundError("no name");
  }
  return std::make_unique<std::string>("nereus");
}

absl::StatusOr<std::string> NameText(bool exists) {
  const std::unique_ptr<std::string> name = NEREUS_TRY(Name(exists));
  return *name;
}

TEST(StatusTest, TryIsTheValueWhereThereIsNoError) {
  EXPECT_EQ(*Quarter(12), 3);
}

TEST(StatusTest, TryReturnsTheErrorFromTheCaller) {
  const absl::StatusOr<int> quarter = Quarter(6);
  EXPECT_EQ(quarter.status(), absl::InvalidArgumentError("number 3 is odd"));
}

TEST(StatusTest, TryAsAStatementSkipsTheRestOnlyAfterAnError) {
  int calls = 0;
  EXPECT_TRUE(CheckEven(2, calls).ok());
  EXPECT_EQ(calls, 2);
  calls = 0;
  EXPECT_EQ(CheckEven(3, calls), absl::InvalidArgumentError("number 3 is odd"));
  EXPECT_EQ(calls, 1);
}

TEST(StatusTest, TryMovesAValueThatCannotBeCopied) {
  EXPECT_EQ(*NameText(true), "nereus");
  EXPECT_EQ(NameText(false).status(), absl::NotFoundError("no name"));
}

TEST(StatusTest, AnErrorJoinsItsParts) {
  EXPECT_EQ(UnavailableError("port ", 29500, " of ", std::string("a:1")),
            absl::UnavailableError("port 29500 of a:1"));
}

TEST(StatusTest, APrefixKeepsTheCode) {
  EXPECT_EQ(Prefixed(absl::DataLossError("checksum differs"), "file ", 3, ": "),
            absl::DataLossError("file 3: checksum differs"));
}

}  // namespace
}  // namespace nereus
