#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nereus {

// A table for people: each column is as wide as its widest cell, with two
// spaces between columns.
class TextTable {
 public:
  // `columns` has a letter for each column: l, its cells are aligned left, as
  // words are; r, right, as numbers are.
  explicit TextTable(absl::string_view columns) : columns_(columns) {}

  // Adds a row. Its cells are anything that absl::StrCat takes. REQUIRES: as
  // many cells as columns.
  template <typename... Cells>
  void Row(const Cells&... cells) {
    rows_.push_back({std::string(absl::StrCat(cells))...});
  }

  // Returns the rows as lines, each ended by '\n', without spaces at the end.
  std::string Text() const {
    std::vector<size_t> widths(columns_.size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - row[i].size(), ' ');
        absl::StrAppend(
            &line, i == 0 ? "" : "  ",
            columns_[i] == 'l' ? row[i] + padding : padding + row[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(&text, line, "\n");
    }
    return text;
  }

 private:
  const std::string columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nereus
