#include "common/plan/model_table.h"

#include <array>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/plan/model_files.h"

// Reader of model tables. ParseModelTable hands line after line to TableReader,
// which knows the header and the names so far; Row turns one line into a layer.
// Every error names the line and, where it can, the column: tables are written
// by hand. The text may come from a hostile file, so errors show fields escaped
// and cut, and each number is checked before it is used.

namespace nereus {
namespace {

// Columns in the order of the header.
enum Column { kName, kKind, kM, kN, kParameters, kRowsPerSample, kColumns };

constexpr std::array<const char*, kColumns> kColumnNames = {
    "name", "kind", "m", "n", "parameters", "rows_per_sample"};

// Kind of a fully connected layer that shares its matrix with another layer:
// its gradient is a sum, and no product of two factors.
constexpr absl::string_view kTiedKind = "fc-tied";

// Returns a field or line for messages, escaped and cut.
std::string Quote(absl::string_view text) {
  constexpr size_t kShownBytesMax = 80;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytesMax)),
                      text.size() > kShownBytesMax ? "...\"" : "\"");
}

absl::Status LineError(int64_t line, absl::string_view problem) {
  return InvalidArgumentError("line ", line, ": ", problem);
}

absl::Status ColumnError(int64_t line, Column column,
                         absl::string_view problem) {
  return InvalidArgumentError("line ", line, ", column ",
                              static_cast<int>(column) + 1, " (",
                              kColumnNames[column], "): ", problem);
}

// Returns the number, or nothing. Accepts only digits: SimpleAtoi would also
// take signs and spaces.
std::optional<int64_t> ParseCount(absl::string_view field) {
  const bool digits =
      absl::c_all_of(field, [](char c) { return c >= '0' && c <= '9'; });
  int64_t value = 0;
  if (!digits || !absl::SimpleAtoi(field, &value)) return std::nullopt;
  return value;
}

// Row of the table: a line that is not empty, no comment and not the header.
class Row {
 public:
  // Cuts a line at commas. Stops after kColumns + 1 fields, so that a line of a
  // million commas costs no more than a short one.
  static absl::StatusOr<Row> Split(int64_t line, absl::string_view text) {
    Row row(line);
    row.fields_ = absl::StrSplit(text, absl::MaxSplits(',', kColumns));
    if (row.fields_.size() != kColumns) {
      return LineError(
          line, absl::StrCat(Quote(text), " has ",
                             row.fields_.size() > kColumns ? "more" : "fewer",
                             " than ", static_cast<int>(kColumns), " columns"));
    }
    return row;
  }

  absl::string_view field(Column column) const { return fields_[column]; }

  // Returns the number in `column`, from 1 to `max`.
  absl::StatusOr<int64_t> Count(Column column, int64_t max) const {
    const std::optional<int64_t> value = ParseCount(field(column));
    if (value.has_value() && *value >= 1 && *value <= max) return *value;
    return ColumnError(line_, column,
                       absl::StrCat(Quote(field(column)),
                                    " is not a whole number from 1 to ", max));
  }

  // Returns the layer of this row, checked, for workers that take `batch`
  // samples in each step.
  absl::StatusOr<LayerSpec> Layer(int64_t batch) const {
    LayerSpec layer;
    layer.name = std::string(field(kName));
    const absl::Status named = ValidateLayerName(layer.name);
    if (!named.ok()) return ColumnError(line_, kName, named.message());
    const bool tied = field(kKind) == kTiedKind;
    const absl::StatusOr<LayerKind> kind =
        tied ? LayerKind::kFullyConnected : ParseLayerKind(field(kKind));
    if (!kind.ok()) {
      return ColumnError(
          line_, kKind, absl::StrCat(kind.status().message(), ", ", kTiedKind));
    }
    layer.kind = *kind;
    layer.has_factors = *kind == LayerKind::kFullyConnected && !tied;
    layer.m = NEREUS_TRY(Count(kM, kLayerParametersMax));
    layer.n = NEREUS_TRY(Count(kN, kLayerParametersMax));
    layer.parameters = NEREUS_TRY(Count(kParameters, kLayerParametersMax));
    const int64_t rows_per_sample =
        NEREUS_TRY(Count(kRowsPerSample, kLayerRowsMax));
    // Does not overflow: at most 2^30 rows a sample times 2^20 samples.
    layer.rows = rows_per_sample * batch;
    if (layer.rows > kLayerRowsMax) {
      return ColumnError(
          line_, kRowsPerSample,
          absl::StrCat(rows_per_sample, " times the batch ", batch, " is ",
                       layer.rows, " rows, at most ", kLayerRowsMax));
    }
    // All fields are in range, so an error can only mean that the sizes
    // contradict each other.
    const absl::Status status = ValidateLayer(layer);
    if (!status.ok()) return ColumnError(line_, kParameters, status.message());
    return layer;
  }

 private:
  explicit Row(int64_t line) : line_(line) {}

  int64_t line_;  // Number of the line, for messages.
  // Fields of the line, kColumns of them.
  std::vector<absl::string_view> fields_;
};

absl::Status CheckHeader(int64_t line, absl::string_view text) {
  const std::string expected = absl::StrJoin(kColumnNames, ",");
  if (text == absl::string_view(expected)) return absl::OkStatus();
  return LineError(line, absl::StrCat("expected the header ", expected,
                                      ", got ", Quote(text)));
}

// Reads the table line by line.
class TableReader {
 public:
  explicit TableReader(int64_t batch) : batch_(batch) {}

  // Takes the next line.
  absl::Status ReadLine(absl::string_view text) {
    ++line_;
    text = absl::StripSuffix(text, "\r");
    if (text.empty() || text.front() == '#') return absl::OkStatus();
    if (!has_header_) {
      has_header_ = true;
      return CheckHeader(line_, text);
    }
    if (layers_.size() == kLayersMax) {
      return LineError(line_,
                       absl::StrCat("more than ", kLayersMax, " layers"));
    }
    const Row row = NEREUS_TRY(Row::Split(line_, text));
    LayerSpec layer = NEREUS_TRY(row.Layer(batch_));
    const auto [first, inserted] = line_by_name_.try_emplace(layer.name, line_);
    if (!inserted) {
      return ColumnError(
          line_, kName,
          absl::StrCat(Quote(layer.name), " is also on line ", first->second));
    }
    layers_.push_back(std::move(layer));
    return absl::OkStatus();
  }

  // Returns the layers. REQUIRES: all lines were read; called once.
  absl::StatusOr<std::vector<LayerSpec>> Finish() {
    if (!has_header_) {
      return LineError(line_, absl::StrCat("the text ends without the header ",
                                           absl::StrJoin(kColumnNames, ",")));
    }
    NEREUS_TRY(ValidateLayers(layers_));
    return std::move(layers_);
  }

 private:
  const int64_t batch_;            // Samples a step.
  int64_t line_ = 0;               // Number of the last line read, from 1.
  bool has_header_ = false;        // True once the header was read.
  std::vector<LayerSpec> layers_;  // Layers read so far.
  // Line of each layer's name, to report a second line with the same name.
  absl::flat_hash_map<std::string, int64_t> line_by_name_;
};

}  // namespace

absl::Status CheckBatch(int64_t batch) {
  if (batch >= 1 && batch <= kBatchMax) return absl::OkStatus();
  return InvalidArgumentError("batch is ", batch, ", not from 1 to ",
                              kBatchMax);
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const ModelFile& file : ModelFiles()) names.push_back(file.name);
  return names;
}

absl::StatusOr<std::vector<LayerSpec>> LoadModel(absl::string_view name,
                                                 int64_t batch) {
  for (const ModelFile& file : ModelFiles()) {
    if (name == file.name) return ParseModelTable(file.text, batch);
  }
  return NotFoundError("no model ", Quote(name), ", known are ",
                       absl::StrJoin(ModelNames(), ", "));
}

absl::StatusOr<std::vector<LayerSpec>> ParseModelTable(absl::string_view text,
                                                       int64_t batch) {
  NEREUS_TRY(CheckBatch(batch));
  TableReader reader(batch);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    NEREUS_TRY(reader.ReadLine(line));
  }
  return reader.Finish();
}

}  // namespace nereus
