#include "common/base/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::HasSubstr;

struct Part {
  std::string label;
  float weight = 0.0f;
};

struct Whole {
  int rank = 0;
  bool is_done = false;
  double loss = 0.0;
  std::optional<int64_t> round;
  absl::Duration time;
  Part first;
  std::vector<Part> parts;
};

void ListPart(JsonFields& fields, Part& part) {
  fields.Text("label", part.label);
  fields.Float("weight", part.weight);
}

void ListWhole(JsonFields& fields, Whole& whole) {
  fields.Integer("rank", whole.rank, -1, 7);
  fields.Flag("is_done", whole.is_done);
  fields.NumberOrNan("loss", whole.loss);
  fields.OrNull("round", whole.round,
                [&](int64_t& round) { fields.Count("round", round); });
  fields.Seconds("time", whole.time);
  fields.Object("first", whole.first, ListPart);
  fields.Objects("parts", whole.parts, ListPart);
}

std::string Write(Whole whole) {
  nlohmann::ordered_json json;
  JsonFields fields(json);
  ListWhole(fields, whole);
  return json.dump();
}

absl::StatusOr<Whole> Read(const std::string& text) {
  const nlohmann::json json = ParseJson(text);
  JsonFields fields(json, "whole");
  Whole whole;
  ListWhole(fields, whole);
  if (!fields.status().ok()) return fields.status();
  return whole;
}

constexpr char kText[] =
    R"({"rank":3,"is_done":true,"loss":0.5,"round":9,"time":1.5,)"
    R"("first":{"label":"a","weight":0.1},"parts":[)"
    R"({"label":"b","weight":1.0},{"label":"c","weight":-2.0}]})";

TEST(JsonFieldsTest, WriterWritesInTheOrderOfTheList) {
  const auto whole = Read(kText);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->parts.size(), 2u);
  EXPECT_EQ(whole->time, absl::Seconds(1.5));
  EXPECT_EQ(Write(*whole), kText);
}

TEST(JsonFieldsTest, UnknownNumbersAreNull) {
  Whole whole;
  whole.loss = std::numeric_limits<double>::quiet_NaN();
  const std::string text = Write(whole);
  EXPECT_EQ(text,
            R"({"rank":0,"is_done":false,"loss":null,"round":null,"time":0.0,)"
            R"("first":{"label":"","weight":0.0},"parts":[]})");
  const auto again = Read(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(std::isnan(again->loss));
  EXPECT_EQ(again->round, std::nullopt);
}

TEST(JsonFieldsTest, MistakeIsNamedByItsPathAndValue) {
  const struct {
    const char* from;
    const char* to;
    const char* message;
  } kCases[] = {
      {"{\"rank\"", "[\"rank\"", "whole: is not JSON"},
      {"\"rank\"", "\"r\"", "whole: rank is missing"},
      {"\"rank\":3", "\"rank\":8", "whole: rank is 8, not from -1 to 7"},
      {"\"rank\":3", "\"rank\":-2", "rank is -2, not from -1 to 7"},
      {"\"rank\":3", "\"rank\":18446744073709551615", "18446744073709551615,"},
      {"\"rank\":3", "\"rank\":3.0", "rank is number 3.0, not an integer"},
      {"true", "1", "is_done is number 1, not a boolean"},
      {"\"round\"", "\"r\"", "whole: round is missing"},
      {"1.5", "-1.5", "time is -1.5, below 0"},
      {"1.5", "null", "time is null, not a number"},
      {"0.1", "1e39", "whole: first: weight is 1e+39, not a float32"},
      {"\"c\"", "7", "whole: parts[1]: label is number 7, not a string"},
      {"\"parts\":[", "\"parts\":[0,", "parts[0]: is not a JSON object"},
      {"\"first\":", "\"first\":0,\"f\":", "first is number 0, not an object"},
  };
  for (const auto& c : kCases) {
    std::string text = kText;
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    text.replace(at, std::string(c.from).size(), c.to);
    const auto whole = Read(text);
    EXPECT_EQ(whole.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    EXPECT_THAT(std::string(whole.status().message()), HasSubstr(c.message));
  }
  EXPECT_THAT(std::string(Read("[]").status().message()),
              HasSubstr("whole: is not a JSON object"));
}

// Later mistakes often follow from the first one.
TEST(JsonFieldsTest, FirstMistakeStays) {
  EXPECT_THAT(std::string(Read("{\"is_done\":3}").status().message()),
              HasSubstr("rank is missing"));
}

}  // namespace
}  // namespace nereus
