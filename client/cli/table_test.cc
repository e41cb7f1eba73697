#include "client/cli/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace hyperframes {
namespace {

std::string Printed(const Table& table) {
  std::ostringstream out;
  table.Print(&out);
  return out.str();
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"NODE"}, {"BYTES", Table::Align::kRight}, {"STATE"}});
  table.AddRow({"a", "1GiB", "ALIVE"});
  table.AddRow({"node-b", "16.50GiB", ""});
  EXPECT_EQ(Printed(table),
            "NODE       BYTES  STATE\n"
            "a           1GiB  ALIVE\n"
            "node-b  16.50GiB  -\n");
}

TEST(Table, WithoutRowsOnlyTheHeaderIsPrinted) {
  EXPECT_EQ(Printed(Table({{"ID"}, {"STATE"}})), "ID  STATE\n");
}

TEST(Table, ControlCharactersDoNotReachTheTerminal) {
  Table table({{"NAME"}});
  table.AddRow({"a\x1b[2Jb\n"});
  EXPECT_EQ(Printed(table), "NAME\na?[2Jb?\n");
}

TEST(Table, CharactersOfSeveralBytesTakeOneCell) {
  Table table({{"NAME"}, {"X"}});
  table.AddRow({"héé", "1"});
  table.AddRow({"abcde", "2"});
  EXPECT_EQ(Printed(table), "NAME   X\nhéé    1\nabcde  2\n");
}

}  // namespace
}  // namespace hyperframes
