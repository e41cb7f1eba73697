#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "common/clock.h"
#include "coordinator/membership/heartbeat_ledger.h"
#include "coordinator/membership/measured_networks.h"
#include "coordinator/membership/node_registry.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

v1::RegisterRequest Description(const std::string& node, uint64_t incarnation,
                                const std::string& address = "127.0.0.1:7463") {
  v1::RegisterRequest request;
  request.set_node(node);
  request.set_incarnation(incarnation);
  request.set_agent_address(address);
  request.set_worker_socket("/run/" + node + ".sock");
  v1::GpuInfo* gpu = request.add_gpus();
  gpu->set_uuid("SIM-" + node + "-0");
  gpu->set_total_bytes(1 << 20);
  return request;
}

class Membership : public testing::Test {
 protected:
  v1::NodeState State(const std::string& node) { return registry_.Find(node)->info.state(); }
  // Ticks as the coordinator does, for `span`, with or without beats of node "a".
  void Run(absl::Duration span, bool beating) {
    for (absl::Duration passed; passed < span; passed += absl::Milliseconds(250)) {
      clock_.Advance(absl::Milliseconds(250));
      if (beating) {
        EXPECT_TRUE(*ledger_.Beat("a", 1, ++sequence_));
      }
      registry_.Tick();
    }
  }

  FakeClock clock_;
  HeartbeatLedger ledger_{&clock_};
  NodeRegistry registry_{NodeRegistry::Options(), &clock_, &ledger_};
  uint64_t sequence_ = 0;
};

TEST(NodeState, AllowsExactlyTheListedMoves) {
  const std::vector<v1::NodeState> states = {v1::NODE_STATE_UNSPECIFIED, v1::NODE_STATE_ALIVE,
                                             v1::NODE_STATE_SUSPECTED, v1::NODE_STATE_OFFLINE};
  int legal = 0;
  for (const auto from : states) {
    for (const auto to : states) legal += LegalNodeMove(from, to) ? 1 : 0;
  }
  EXPECT_EQ(legal, 5);
  EXPECT_FALSE(LegalNodeMove(v1::NODE_STATE_ALIVE, v1::NODE_STATE_OFFLINE));
  EXPECT_FALSE(LegalNodeMove(v1::NODE_STATE_OFFLINE, v1::NODE_STATE_SUSPECTED));
}

TEST_F(Membership, StaysAliveWhileItBeats) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  Run(absl::Seconds(60), /*beating=*/true);
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
}

TEST_F(Membership, SilenceLeadsThroughSuspectedToOfflineAndNotSooner) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  Run(absl::Milliseconds(2750), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
  Run(absl::Milliseconds(250), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_SUSPECTED);
  Run(absl::Milliseconds(6750), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_SUSPECTED);
  Run(absl::Milliseconds(250), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_OFFLINE);
}

TEST_F(Membership, OneLateBeatBringsASuspectBack) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  Run(absl::Seconds(5), false);
  ASSERT_EQ(State("a"), v1::NODE_STATE_SUSPECTED);
  Run(absl::Milliseconds(250), true);
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
}

TEST_F(Membership, AnOfflineNodeMustRegisterAgain) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  Run(absl::Seconds(11), false);
  ASSERT_EQ(State("a"), v1::NODE_STATE_OFFLINE);
  EXPECT_FALSE(*ledger_.Beat("a", 1, 9));
  v1::ReportRequest report;
  report.set_node("a");
  report.set_incarnation(1);
  EXPECT_FALSE(*registry_.Report(report));
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
  EXPECT_TRUE(*ledger_.Beat("a", 1, 10));
}

// docs/cases.md C2.
TEST_F(Membership, AStallOfTheCoordinatorLeavesAgentsSuspectedAtMost) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  Run(absl::Seconds(1), true);
  clock_.Advance(absl::Seconds(20));  // Two TTLs: stopped, and no tick ran.
  registry_.Tick();
  registry_.Tick();
  EXPECT_EQ(registry_.stalls(), 1);
  EXPECT_EQ(State("a"), v1::NODE_STATE_SUSPECTED);
  Run(absl::Seconds(1), true);
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
}

TEST_F(Membership, AfterAStallOnlyWatchedSilenceCountsTowardsOffline) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  clock_.Advance(absl::Seconds(20));
  registry_.Tick();
  Run(absl::Milliseconds(6750), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_SUSPECTED);
  Run(absl::Milliseconds(250), false);
  EXPECT_EQ(State("a"), v1::NODE_STATE_OFFLINE);
}

// docs/cases.md C8.
TEST_F(Membership, ARestartUnderTheSameNameTakesOverAndEndsTheOldIncarnation) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  ASSERT_TRUE(registry_.Register(Description("a", 2)).ok());
  EXPECT_EQ(registry_.Find("a")->info.incarnation(), 2u);
  const auto beat = ledger_.Beat("a", 1, 5);
  EXPECT_TRUE(absl::IsAborted(beat.status()));
  EXPECT_TRUE(absl::StrContains(beat.status().message(), "newer incarnation 2"));
  v1::ReportRequest report;
  report.set_node("a");
  report.set_incarnation(1);
  EXPECT_TRUE(absl::IsAborted(registry_.Report(report).status()));
  const absl::Status old = registry_.Register(Description("a", 1));
  EXPECT_TRUE(absl::IsAborted(old)) << old;
  EXPECT_TRUE(absl::StrContains(old.message(), "2"));
}

TEST_F(Membership, ARestartOnAnotherPortIsKnownByItsSocket) {
  ASSERT_TRUE(registry_.Register(Description("a", 1, "127.0.0.1:1000")).ok());
  EXPECT_TRUE(registry_.Register(Description("a", 2, "127.0.0.1:2000")).ok());
}

TEST_F(Membership, AnotherLivingAgentOfThatNameIsRefusedUntilTheFirstFallsSilent) {
  ASSERT_TRUE(registry_.Register(Description("a", 1, "10.0.0.1:7463")).ok());
  const absl::Status refused = registry_.Register(Description("a", 2, "10.0.0.2:7463"));
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "10.0.0.1:7463"));
  EXPECT_TRUE(*ledger_.Beat("a", 1, 1));
  clock_.Advance(absl::Seconds(3));
  EXPECT_TRUE(registry_.Register(Description("a", 2, "10.0.0.2:7463")).ok());
}

TEST_F(Membership, NamesTheFieldThatItCannotRead) {
  const auto refused = [&](const v1::RegisterRequest& request, const char* field) {
    const absl::Status status = registry_.Register(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), field)) << status;
  };
  refused(Description("", 1), "node");
  refused(Description("a b", 1), "node");
  refused(Description(std::string(64, 'n'), 1), "node");
  refused(Description("a", 0), "incarnation");
  refused(Description("a", 1, ""), "agent_address");
  auto twice = Description("a", 1);
  *twice.add_gpus() = twice.gpus(0);
  refused(twice, "gpus[1].uuid");
  auto negative = Description("a", 1);
  negative.mutable_gpus(0)->set_total_bytes(-1);
  refused(negative, "gpus[0]");
  auto link = Description("a", 1);
  link.add_links()->set_bytes_per_second(0);
  refused(link, "links");
  auto network = Description("a", 1);
  network.mutable_network()->set_bytes_per_second(-1);
  refused(network, "network");
  EXPECT_TRUE(registry_.List().empty());
}

TEST_F(Membership, BoundsTheNumberOfNodes) {
  NodeRegistry::Options options;
  options.max_nodes = 1;
  NodeRegistry registry(options, &clock_, &ledger_);
  ASSERT_TRUE(registry.Register(Description("a", 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(registry.Register(Description("b", 1))));
}

// docs/cases.md C1, without the network: the ledger's lock is its own.
TEST_F(Membership, BeatsCountWhileTheRegistryIsLocked) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  registry_.Visit([&](const Node&) {
    for (int i = 0; i < 12; ++i) {
      clock_.Advance(absl::Seconds(1));
      EXPECT_TRUE(*ledger_.Beat("a", 1, ++sequence_));
    }
  });
  registry_.Tick();
  EXPECT_EQ(State("a"), v1::NODE_STATE_ALIVE);
}

TEST_F(Membership, ReportsReplaceWhatTheNodeHolds) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  v1::ReportRequest report;
  report.set_node("a");
  report.set_incarnation(1);
  v1::LeaseReport* lease = report.add_leases();
  lease->set_lease_id("l");
  lease->set_tier(v1::TIER_HOST);
  lease->set_bytes(100);
  lease->set_state(v1::LEASE_STATE_COMMITTED);
  ASSERT_TRUE(*registry_.Report(report));
  EXPECT_EQ(registry_.Find("a")->info.host_lent_bytes(), 100);
  EXPECT_EQ(registry_.Find("a")->info.leases_size(), 1);
}

class MeasuredWays : public Membership {
 protected:
  absl::Status Report(const std::string& to, double rate, double age_s, uint64_t incarnation = 1) {
    v1::ReportRequest request;
    request.set_node("a");
    request.set_incarnation(incarnation);
    Add(&request, to, rate, age_s);
    return registry_.Report(request).status();
  }
  template <typename Request>
  static void Add(Request* request, const std::string& to, double rate, double age_s) {
    v1::NetworkMeasurement* measured = request->add_network_measured();
    measured->set_node(to);
    measured->set_bytes_per_second(rate);
    measured->set_age_s(age_s);
  }
  v1::NodeInfo Info() { return registry_.Find("a")->info; }
};

TEST_F(MeasuredWays, GrowOldByTheCoordinatorsClock) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  EXPECT_EQ(Info().network_measured_size(), 0);
  ASSERT_TRUE(Report("b", 5e8, 2).ok());
  clock_.Advance(absl::Seconds(3));
  ASSERT_EQ(Info().network_measured_size(), 1);
  EXPECT_EQ(Info().network_measured(0).node(), "b");
  EXPECT_EQ(Info().network_measured(0).bytes_per_second(), 5e8);
  EXPECT_EQ(Info().network_measured(0).age_s(), 5);
}

TEST_F(MeasuredWays, AreKeptWhenAnAgentRestartsAndReplacedByWhatItMeasures) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  ASSERT_TRUE(Report("b", 5e8, 0).ok());
  ASSERT_TRUE(registry_.Register(Description("a", 2)).ok());
  ASSERT_EQ(Info().network_measured_size(), 1) << "its way has not changed";
  ASSERT_TRUE(Report("c", 1e8, 0, /*incarnation=*/2).ok());
  ASSERT_TRUE(Report("b", 4e8, 0, /*incarnation=*/2).ok());
  ASSERT_EQ(Info().network_measured_size(), 2);
  EXPECT_EQ(Info().network_measured(0).bytes_per_second(), 4e8);
}

TEST_F(MeasuredWays, AreBoundedAndTheOldestGoes) {
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  for (int i = 0; i <= MeasuredNetworks::kMost; ++i) {
    ASSERT_TRUE(Report("n" + std::to_string(i), 1e8, i == 7 ? 100 : 0).ok());
  }
  const v1::NodeInfo info = Info();
  ASSERT_EQ(info.network_measured_size(), MeasuredNetworks::kMost);
  for (const auto& measured : info.network_measured()) EXPECT_NE(measured.node(), "n7");
}

TEST_F(MeasuredWays, ThatCannotBeAreRefused) {
  v1::RegisterRequest description = Description("a", 1);
  for (int i = 0; i <= MeasuredNetworks::kMost; ++i) {
    Add(&description, "n" + std::to_string(i), 1, 0);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(registry_.Register(description)));
  ASSERT_TRUE(registry_.Register(Description("a", 1)).ok());
  const std::vector<std::tuple<std::string, double, double>> impossible = {
      {"", 1e8, 0},  {"b", 0, 0},        {"b", -1e8, 0}, {"b", 1e8, -1},
      {"b", NAN, 0}, {"b", INFINITY, 0}, {"b", 1e8, NAN}};
  for (const auto& [to, rate, age_s] : impossible) {
    EXPECT_TRUE(absl::IsInvalidArgument(Report(to, rate, age_s))) << to << rate << " " << age_s;
  }
  EXPECT_EQ(Info().network_measured_size(), 0);
}

}  // namespace
}  // namespace hyperframes
