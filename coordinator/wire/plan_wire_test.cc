#include "coordinator/wire/plan_wire.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <limits>

#include "coordinator/wire/plan_json.h"

namespace hyperframes {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::Reflection;
using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using ::testing::Not;

// Sets every field of a message to a value of its own, also fields that are added later: a field
// that the conversion forgets then differs after a round trip.
void FillScalar(Message* message, const FieldDescriptor* field, int* next, bool add) {
  const Reflection* reflection = message->GetReflection();
  const int value = ++*next;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(message, field, value);
    case FieldDescriptor::CPPTYPE_INT64:
      return add ? reflection->AddInt64(message, field, value)
                 : reflection->SetInt64(message, field, (int64_t{1} << 40) + value);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(message, field, value + 0.000125);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, "text" + std::to_string(value));
    case FieldDescriptor::CPPTYPE_ENUM:
      return add ? reflection->AddEnumValue(message, field, 2)
                 : reflection->SetEnumValue(message, field, 2);
    default:
      FAIL() << "no value for " << field->full_name();
  }
}

void Fill(Message* message, int* next) {
  const Descriptor* descriptor = message->GetDescriptor();
  for (int f = 0; f < descriptor->field_count(); ++f) {
    const FieldDescriptor* field = descriptor->field(f);
    const Reflection* reflection = message->GetReflection();
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    for (int twice = 0; twice < (field->is_repeated() ? 2 : 1); ++twice) {
      if (is_message) {
        Fill(field->is_repeated() ? reflection->AddMessage(message, field)
                                  : reflection->MutableMessage(message, field),
             next);
      } else {
        FillScalar(message, field, next, field->is_repeated());
      }
    }
  }
}

TEST(PlanWire, EveryFieldOfAProblemSurvivesTheRoundTrip) {
  v1::PlanProblem message;
  int next = 0;
  Fill(&message, &next);
  const auto problem = FromProto(message);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->ranks.size(), 2u);
  EXPECT_FALSE(problem->ranks[0].blocks[0].recomputable);
  EXPECT_FALSE(problem->ranks[0].blocks[0].storages[1].movable);
  EXPECT_FALSE(problem->ranks[0].blocks[0].storages[1].stable);
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(message, ToProto(*problem))) << difference;
}

TEST(PlanWire, EveryFieldOfAPlanSurvivesTheRoundTrip) {
  v1::FramePlan message;
  int next = 0;
  Fill(&message, &next);
  const auto plan = FromProto(message);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ranks[1].blocks[0].policy, Policy::kSelective);
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(message, ToProto(*plan, message.epoch()))) << difference;
}

TEST(PlanWire, DefaultsMeanWhatTheProtoSays) {
  v1::PlanProblem message;
  message.add_ranks()->add_blocks()->add_storages();
  const auto problem = FromProto(message);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->ranks[0].budget, -1);
  EXPECT_EQ(problem->ranks[0].activation_budget, -1);
  EXPECT_TRUE(problem->ranks[0].blocks[0].recomputable);
  EXPECT_TRUE(problem->ranks[0].blocks[0].storages[0].movable);
  EXPECT_EQ(problem->ranks[0].blocks[0].storages[0].consumers, 1);
  message.mutable_ranks(0)->set_budget(0);
  EXPECT_EQ(FromProto(message)->ranks[0].budget, 0);  // None, not unlimited.
  EXPECT_TRUE(ToProto(*FromProto(message)).ranks(0).has_budget());
}

TEST(PlanWire, RefusesByFieldAndValue) {
  const auto refusal = [](void (*spoil)(v1::PlanProblem*)) {
    v1::PlanProblem message;
    message.add_ranks()->add_blocks()->add_storages();
    message.add_devices();
    message.add_links();
    spoil(&message);
    const auto problem = FromProto(message);
    EXPECT_EQ(problem.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(problem.status().message());
  };
  EXPECT_THAT(refusal([](v1::PlanProblem* p) {
                p->mutable_ranks(0)->mutable_blocks(0)->mutable_storages(0)->set_bytes(-7);
              }),
              HasSubstr("problem.ranks[0].blocks[0].storages[0].bytes is -7"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) {
                p->mutable_ranks(0)->mutable_blocks(0)->set_forward_s(
                    std::numeric_limits<double>::quiet_NaN());
              }),
              HasSubstr("problem.ranks[0].blocks[0].forward_s is nan"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) {
                p->mutable_ranks(0)->mutable_blocks(0)->set_backward_s(1e300);
              }),
              HasSubstr("backward_s is 1e+300"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) { p->mutable_ranks(0)->set_budget(-1); }),
              HasSubstr("problem.ranks[0].budget is -1; 0 means none"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) { p->mutable_ranks(0)->set_resident_bytes(-1); }),
              HasSubstr("ranks[0].resident_bytes is -1"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) { p->mutable_devices(0)->set_lendable_bytes(-1); }),
              HasSubstr("devices[0].lendable_bytes is -1"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) {
                p->mutable_links(0)->set_bytes_per_second(std::numeric_limits<double>::infinity());
              }),
              HasSubstr("links[0].bytes_per_second is inf"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) { p->mutable_links(0)->set_latency_s(-1); }),
              HasSubstr("links[0].latency_s is -1"));
  EXPECT_THAT(refusal([](v1::PlanProblem* p) { p->add_forbidden_tiers(static_cast<v1::Tier>(9)); }),
              HasSubstr("forbidden_tiers[0] is 9; tiers are"));
}

TEST(PlanWire, RefusesBrokenPlansByFieldAndValue) {
  v1::FramePlan message;
  message.add_ranks()->add_blocks()->add_storages()->set_preferred_offset(-2);
  EXPECT_THAT(std::string(FromProto(message).status().message()),
              HasSubstr("plan.ranks[0].blocks[0].storages[0].preferred_offset is -2"));
  message.mutable_ranks(0)->mutable_blocks(0)->set_policy(static_cast<v1::Policy>(7));
  EXPECT_THAT(std::string(FromProto(message).status().message()),
              HasSubstr("plan.ranks[0].blocks[0].policy is 7"));
  message.mutable_ranks(0)->clear_blocks();
  message.mutable_ranks(0)->set_peer_bytes(-3);
  EXPECT_THAT(std::string(FromProto(message).status().message()),
              HasSubstr("plan.ranks[0].peer_bytes is -3"));
}

TEST(PlanJson, EveryFieldSurvivesTheRoundTripInSnakeCase) {
  v1::PlanProblem message;
  int next = 0;
  Fill(&message, &next);
  const auto json = ToJson(message);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, HasSubstr("\"resident_bytes\":\"1099511"));
  EXPECT_THAT(*json, HasSubstr("\"TIER_HOST\""));
  EXPECT_THAT(*json, Not(HasSubstr("residentBytes")));
  v1::PlanProblem back;
  ASSERT_TRUE(FromJson(*json, &back).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(message, back));
}

TEST(PlanJson, PrintsDefaultsButNoAbsentBudget) {
  v1::RankProblem message;
  const std::string json = *ToJson(message);
  EXPECT_THAT(json, HasSubstr("\"rank\":0"));
  EXPECT_THAT(json, HasSubstr("\"overhead_bytes\":\"0\""));
  EXPECT_THAT(json, Not(HasSubstr("budget")));
  message.set_budget(0);
  EXPECT_THAT(*ToJson(message), HasSubstr("\"budget\":\"0\""));
}

TEST(PlanJson, ReadsBothSpellingsAndPlainNumbers) {
  v1::RankProblem message;
  ASSERT_TRUE(
      FromJson(R"({"resident_bytes": 5, "overheadBytes": "6", "budget": 0})", &message).ok());
  EXPECT_EQ(message.resident_bytes(), 5);
  EXPECT_EQ(message.overhead_bytes(), 6);
  EXPECT_TRUE(message.has_budget());
}

TEST(PlanJson, RefusesByNameAndLeavesTheMessageEmpty) {
  const auto refusal = [](const std::string& json) {
    v1::PlanProblem message;
    message.set_job_id("before");
    const absl::Status status = FromJson(json, &message);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.substr(0, 80);
    EXPECT_EQ(message.ByteSizeLong(), 0u);
    EXPECT_LT(status.message().size(), 400u);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(R"({"ranks": [{"resident_byte": 1}]})"), HasSubstr("resident_byte"));
  EXPECT_THAT(refusal(R"({"ranks": [{"resident_bytes": "lots"}]})"), HasSubstr("resident_bytes"));
  EXPECT_THAT(refusal(R"({"ranks": [{"resident_bytes": 99999999999999999999}]})"),
              HasSubstr("resident_bytes"));
  EXPECT_THAT(refusal(R"({"forbidden_tiers": ["TIER_MOON"]})"), HasSubstr("forbidden_tiers"));
  EXPECT_THAT(refusal("{\"ranks\": [{\"gpu\": "), HasSubstr("PlanProblem JSON is refused"));
  EXPECT_THAT(refusal(""), HasSubstr("PlanProblem"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("PlanProblem"));
  EXPECT_THAT(refusal("{\"" + std::string(100000, 'x') + "\": 1}"), HasSubstr("PlanProblem"));
}

TEST(PlanJson, NotANumberIsCaughtOnTheWayIn) {
  v1::BlockProfile message;
  ASSERT_TRUE(FromJson(R"({"forward_s": "NaN"})", &message).ok());
  EXPECT_THAT(std::string(FromProto(message, "block").status().message()),
              HasSubstr("block.forward_s is nan"));
}

}  // namespace
}  // namespace hyperframes
