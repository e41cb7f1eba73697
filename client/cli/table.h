// The one table printer of hfctl.
#ifndef HYPERFRAMES_CLIENT_CLI_TABLE_H_
#define HYPERFRAMES_CLIENT_CLI_TABLE_H_

#include <ostream>
#include <string>
#include <vector>

namespace hyperframes {

// Columns as wide as their widest cell, two blanks apart, header first. Not thread-safe.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);

  // As many cells as columns. Empty cells are printed as "-". Control characters, which would move
  // the reader's cursor, are printed as '?'.
  void AddRow(std::vector<std::string> cells);

  // Nothing but the header when there are no rows. No line ends with a blank.
  void Print(std::ostream* out) const;

 private:
  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` with control characters as '?', for one line of a terminal.
std::string Printable(const std::string& text);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_TABLE_H_
