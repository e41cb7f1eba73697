#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "agent/telemetry/counters_page.h"
#include "agent/telemetry/exporter.h"
#include "agent/telemetry/worker_counters.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A page as a worker would share it.
class WorkerPage {
 public:
  explicit WorkerPage(int64_t bytes = kCountersPageBytes)
      : descriptor_(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(descriptor_.get(), bytes), 0);
    void* mapped =
        mmap(nullptr, kCountersPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
    page_ = static_cast<CountersPage*>(mapped);
    if (bytes < kCountersPageBytes) return;
    page_->magic = kCountersMagic;
    page_->version = kCountersVersion;
  }
  ~WorkerPage() { munmap(page_, kCountersPageBytes); }
  CountersPage* operator->() { return page_; }
  UniqueFd Share() const { return UniqueFd(fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0)); }

 private:
  UniqueFd descriptor_;
  CountersPage* page_;
};

TEST(ReadCounters, RefusesWhatIsNoPage) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  EXPECT_EQ(ReadCounters(read_end.get()).status().code(), absl::StatusCode::kInvalidArgument)
      << "and does not block on it";
  EXPECT_EQ(ReadCounters(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadCounters(WorkerPage(100).Share().get()).status().code(),
            absl::StatusCode::kInvalidArgument);
  WorkerPage magic, version;
  magic->magic = 1;
  version->version = 2;
  EXPECT_EQ(ReadCounters(magic.Share().get()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadCounters(version.Share().get()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ReadCounters, BelievesNoImpossibleValue) {
  WorkerPage page;
  page->steps = -5;
  page->activation_bytes = INT64_MAX;
  const auto reading = ReadCounters(page.Share().get());
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(reading->steps, 0);
  EXPECT_LT(reading->activation_bytes, INT64_MAX / 64) << "sums over workers must not overflow";
}

TEST(WorkerCounters, KeepsTotalsAndDropsGaugesOfAnEndedWorker) {
  WorkerCounters counters;
  WorkerPage first, second;
  first->steps = 3;
  first->activation_bytes = 100;
  second->steps = 4;
  second->activation_bytes = 50;
  ASSERT_TRUE(counters.Attach("job-0-0", "SIM-a-0", first.Share()).ok());
  ASSERT_TRUE(counters.Attach("job-1-0", "SIM-a-0", second.Share()).ok());
  EXPECT_EQ(counters.ByGpu()["SIM-a-0"].steps, 7);
  EXPECT_EQ(counters.ByGpu()["SIM-a-0"].activation_bytes, 150);
  first->steps = 5;
  counters.Detach("job-0-0");
  counters.Detach("job-0-0");
  EXPECT_EQ(counters.Of("job-0-0").steps, 5) << "until its end has been reported";
  counters.Forget("job-0-0");
  EXPECT_EQ(counters.Of("job-0-0").steps, 0);
  EXPECT_EQ(counters.ByGpu()["SIM-a-0"].steps, 9);
  EXPECT_EQ(counters.ByGpu()["SIM-a-0"].activation_bytes, 50);
}

TEST(WorkerCounters, SumsMicroBatchesByStageOverWorkersThatCameAndWent) {
  WorkerCounters counters;
  WorkerPage first, second;
  first->micro_batches[0] = 2;
  first->micro_batch_run_ns[0] = 4'000'000'000;
  second->micro_batches[0] = 1;
  second->micro_batch_run_ns[0] = 1'000'000'000;
  second->micro_batches[5] = 3;
  second->micro_batch_wait_ns[5] = 500'000'000;
  ASSERT_TRUE(counters.Attach("job-0-0", "SIM-a-0", first.Share()).ok());
  ASSERT_TRUE(counters.Attach("job-1-0", "SIM-a-0", second.Share()).ok());
  counters.Detach("job-0-0");
  const auto stages = counters.ByGpu()["SIM-a-0"].stages;
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages.at(0).micro_batches, 3);
  EXPECT_DOUBLE_EQ(stages.at(0).run_s, 5.0);
  EXPECT_DOUBLE_EQ(stages.at(5).wait_s, 0.5);
}

TEST(WorkerCounters, KeepsTheLastGoodReadingOfAPageThatWasSpoiled) {
  WorkerCounters counters;
  WorkerPage page;
  page->steps = 3;
  ASSERT_TRUE(counters.Attach("job-0-0", "SIM-a-0", page.Share()).ok());
  ASSERT_EQ(ftruncate(page.Share().get(), 0), 0);
  EXPECT_EQ(counters.Of("job-0-0").steps, 3);
}

TEST(WorkerCounters, IsBounded) {
  WorkerCounters counters(/*most_pages=*/1);
  WorkerPage page;
  ASSERT_TRUE(counters.Attach("a", "SIM-a-0", page.Share()).ok());
  EXPECT_TRUE(counters.Attach("a", "SIM-a-0", page.Share()).ok());
  EXPECT_EQ(counters.Attach("b", "SIM-a-0", page.Share()).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ExportMetrics, TellsCapacityUseAndWaterLevelOfEveryDevice) {
  NodeSample sample;
  sample.devices = {{"SIM-a-0", false, 1000, 100, 300, 600}, {"host:a", true, 5000, 0, 0, 5000}};
  sample.counters_by_gpu["SIM-a-0"].activation_peak_bytes = 200;
  sample.counters_by_gpu["SIM-a-0"].bytes_copied[0][1] = 77;
  sample.counters_by_gpu["SIM-a-0"].predicted_peak_bytes = 250;
  sample.counters_by_gpu["SIM-a-0"].reload_bytes = 33;
  sample.leases_reclaimed = {{"worker_died", 4}};
  const std::string text = ExportMetrics(sample);
  EXPECT_THAT(text, HasSubstr("hyperframes_lent_capacity_bytes{uuid=\"SIM-a-0\"} 900\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_lent_used_bytes{uuid=\"SIM-a-0\"} 300\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_lent_largest_free_bytes{uuid=\"host:a\"} 5000\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_water_level_ratio{uuid=\"SIM-a-0\"} 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("water_level_ratio{uuid=\"host:a\"}")));
  EXPECT_THAT(text, HasSubstr("hyperframes_copied_bytes_total{uuid=\"SIM-a-0\",direction=\"out\","
                              "tier=\"peer\"} 77\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_predicted_peak_bytes{uuid=\"SIM-a-0\"} 250\n"));
  EXPECT_THAT(text,
              HasSubstr("hyperframes_in_flight_bytes{uuid=\"SIM-a-0\",direction=\"in\"} 33\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_leases_reclaimed_total{reason=\"worker_died\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_leases_reclaimed_total{reason=\"revoked\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_worker_exits_total{reason=\"signal\"} 0\n"));
}

TEST(ExportMetrics, TellsMicroBatchesByStageAndAZeroBeforeTheFirst) {
  NodeSample sample;
  sample.counters_by_gpu["SIM-a-0"];
  sample.counters_by_gpu["SIM-a-1"].stages[2] = {7, 1.5, 0.25};
  const std::string text = ExportMetrics(sample);
  EXPECT_THAT(text, HasSubstr("hyperframes_micro_batches_total{uuid=\"SIM-a-0\",stage=\"0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_micro_batches_total{uuid=\"SIM-a-1\",stage=\"2\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_micro_batch_run_seconds_total{uuid=\"SIM-a-1\","
                              "stage=\"2\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("hyperframes_micro_batch_wait_seconds_total{uuid=\"SIM-a-1\","
                              "stage=\"2\"} 0.25\n"));
}

TEST(ExportMetrics, TellsWhatTheNetworkPromisesAndWhatItGives) {
  NodeSample sample;
  EXPECT_THAT(ExportMetrics(sample), Not(HasSubstr("hyperframes_network")));
  sample.network_kind = "roce";
  sample.network_promised = 5e10;
  sample.network_measured = {{"b", 2e9}};
  const std::string text = ExportMetrics(sample);
  EXPECT_THAT(
      text, HasSubstr("hyperframes_network_promised_bytes_per_second{kind=\"roce\"} 50000000000"));
  EXPECT_THAT(text,
              HasSubstr("hyperframes_network_measured_bytes_per_second{peer=\"b\"} 2000000000"));
}

TEST(ExportMetrics, ForgetsAJobWithItsWorkers) {
  NodeSample sample;
  sample.jobs = {{"job", "job-0-0", "SIM-a-0"}};
  EXPECT_THAT(ExportMetrics(sample), HasSubstr("job_id=\"job\""));
  sample.jobs.clear();
  EXPECT_THAT(ExportMetrics(sample), Not(HasSubstr("job_id=\"job\"")));
}

}  // namespace
}  // namespace hyperframes
