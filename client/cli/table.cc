#include "client/cli/table.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace hyperframes {
namespace {

// Cells of a terminal, near enough: UTF-8 continuation bytes take none.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string printable = text;
  for (char& c : printable) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return printable;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  if (cells.size() != columns_.size())
    std::abort();  // A mistake in this program, not in its input.
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Printable(cell);
  rows_.push_back(std::move(cells));
}

void Table::Print(std::ostream* out) const {
  std::vector<std::string> headers;
  std::vector<size_t> widths;
  for (size_t column = 0; column < columns_.size(); ++column) {
    headers.push_back(columns_[column].header);
    size_t width = Width(headers.back());
    for (const auto& row : rows_) width = std::max(width, Width(row[column]));
    widths.push_back(width);
  }
  const auto print_row = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string padding(widths[column] - Width(cells[column]), ' ');
      if (column > 0) line += "  ";
      line += columns_[column].align == Align::kRight ? padding + cells[column]
                                                      : cells[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    *out << line << "\n";
  };
  print_row(headers);
  for (const auto& row : rows_) print_row(row);
}

}  // namespace hyperframes
