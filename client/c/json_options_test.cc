#include "client/c/json_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

struct Values {
  std::string text = "before";
  bool flag = false;
  double number = 0;
  int64_t integer = 0;
  Bytes size = -1;
  std::vector<int64_t> list;
};

absl::Status Parse(const std::string& json, Values* values) {
  JsonOptions reader("options_json");
  reader.String("text", &values->text);
  reader.Bool("flag", &values->flag);
  reader.Number("number", &values->number);
  reader.Integer("integer", &values->integer);
  reader.Size("size", &values->size);
  reader.Array("list", [values](const nlohmann::json& element, const std::string& what) {
    int64_t number = 0;
    JsonOptions inner(what);
    inner.Integer("n", &number);
    const absl::Status status = inner.Read(element);
    values->list.push_back(number);
    return status;
  });
  return reader.Parse(json);
}

TEST(JsonOptions, EveryKindIsRead) {
  Values values;
  const absl::Status status = Parse(
      R"({"text": "t", "flag": true, "number": 1.5, "integer": -3, "size": 1e3, "list": [{"n": 7}]})",
      &values);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values.text, "t");
  EXPECT_TRUE(values.flag);
  EXPECT_EQ(values.number, 1.5);
  EXPECT_EQ(values.integer, -3);
  EXPECT_EQ(values.size, 1000);
  EXPECT_THAT(values.list, ::testing::ElementsAre(7));
}

TEST(JsonOptions, SizesAreNumbersDecimalStringsOrWordsOfPeople) {
  for (const std::string size : {"4096", "\"4096\"", "\"4KiB\"", "4096.0"}) {
    Values values;
    EXPECT_TRUE(Parse("{\"size\": " + size + "}", &values).ok()) << size;
    EXPECT_EQ(values.size, 4096) << size;
  }
}

TEST(JsonOptions, AbsentAndNullFieldsKeepTheirDefault) {
  Values values;
  EXPECT_TRUE(Parse("", &values).ok());
  EXPECT_TRUE(Parse("{\"text\": null}", &values).ok());
  EXPECT_EQ(values.text, "before");
}

TEST(JsonOptions, WrongKindsAreRefusedWithFieldAndValue) {
  for (const std::string json :
       {"{\"text\": 5}", "{\"flag\": 5}", "{\"number\": \"5\"}", "{\"integer\": 5.5}",
        "{\"size\": -5}", "{\"size\": 5.5}", "{\"size\": \"5 apples\"}", "{\"list\": 5}",
        "{\"list\": [5]}", "{\"list\": [{\"n\": \"5\"}]}", "{\"integer\": 55555555555555555555}"}) {
    Values values;
    const absl::Status status = Parse(json, &values);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("5")) << json;
  }
}

TEST(JsonOptions, UnknownFieldsAreNamedWithTheKnownOnes) {
  Values values;
  const absl::Status status = Parse("{\"sise\": 1}", &values);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"sise\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("size"));
}

TEST(JsonOptions, TextThatIsNoJsonSaysWhere) {
  Values values;
  const std::string json = "{\"size\": 1, ";
  for (size_t length = 1; length <= json.size(); ++length) {
    const absl::Status status = Parse(json.substr(0, length), &values);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << length;
    EXPECT_THAT(std::string(status.message()), HasSubstr("at byte")) << length;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Parse("[1]", &values)));
  EXPECT_TRUE(absl::IsInvalidArgument(Parse("\xff\xfe", &values)));
}

TEST(JsonOptions, DeepAndLongTextNeitherCrashesNorFillsTheError) {
  Values values;
  EXPECT_FALSE(Parse(std::string(100000, '['), &values).ok());
  const absl::Status status = Parse("{\"text\": [\"" + std::string(100000, 'x') + "\"]}", &values);
  EXPECT_LT(status.message().size(), 256u);
}

}  // namespace
}  // namespace hyperframes
