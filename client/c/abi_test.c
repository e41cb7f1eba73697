/* The C ABI as a C11 program sees it, linked to the library that ships. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/c/hyperframes.h"

static int failures = 0;

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              hf_last_error());                                                               \
      ++failures;                                                                             \
    }                                                                                         \
  } while (0)

/* The code, and a sentence that holds `words`. */
#define EXPECT_REFUSED(call, code, words)             \
  do {                                                \
    EXPECT((call) == (code));                         \
    EXPECT(strstr(hf_last_error(), (words)) != NULL); \
    EXPECT(strlen(hf_last_error()) < 2048);           \
  } while (0)

static const char kMachine[] =
    "{\"backend\": \"host\", \"host_bytes\": 8388608, \"devices\": ["
    "{\"uuid\": \"SIM-local-0\", \"total_bytes\": 8388608},"
    "{\"uuid\": \"SIM-local-1\", \"total_bytes\": 8388608, \"peer_bandwidth\": 1000000000}]}";
static const char kEngine[] =
    "{\"gpu\": \"SIM-local-0\", \"stash_limit\": 1048576, \"prefetch_limit\": \"1MiB\", "
    "\"verify\": true, \"leases\": ["
    "{\"device\": \"SIM-local-1\", \"tier\": \"TIER_PEER\", \"bytes\": 1048576},"
    "{\"device\": \"host:local\", \"tier\": \"TIER_HOST\", \"bytes\": \"1048576\"}]}";

static void TestVersionAndUnits(void) {
  int64_t bytes = 0;
  double seconds = 0;
  char text[16];
  EXPECT(hf_abi_version() == ((HF_ABI_MAJOR << 16) | HF_ABI_MINOR));
  EXPECT(strlen(hf_version()) > 0);
  EXPECT(hf_parse_bytes("60GiB", &bytes) == HF_OK);
  EXPECT(bytes == (int64_t)60 << 30);
  EXPECT(hf_parse_duration("1m30s", &seconds) == HF_OK);
  EXPECT(seconds == 90.0);
  EXPECT(hf_format_bytes(bytes, text, sizeof text) == HF_OK);
  EXPECT(strcmp(text, "60GiB") == 0);
  EXPECT_REFUSED(hf_parse_bytes("60 apples", &bytes), HF_INVALID_ARGUMENT, "60 apples");
  EXPECT_REFUSED(hf_parse_bytes(NULL, &bytes), HF_INVALID_ARGUMENT, "`text` is NULL");
  EXPECT_REFUSED(hf_parse_bytes("1", NULL), HF_INVALID_ARGUMENT, "`bytes` is NULL");
  EXPECT_REFUSED(hf_parse_duration("5", &seconds), HF_INVALID_ARGUMENT, "5");
  EXPECT_REFUSED(hf_format_bytes(1, text, 1), HF_OUT_OF_RANGE, "capacity");
  EXPECT_REFUSED(hf_format_bytes(-1, text, sizeof text), HF_INVALID_ARGUMENT, "-1");
  hf_free(NULL);
}

static void TestMachine(void) {
  hf_machine* machine = NULL;
  char* json = NULL;
  EXPECT(hf_machine_open(kMachine, &machine) == HF_OK);
  EXPECT(hf_machine_describe(machine, &json) == HF_OK);
  EXPECT(json != NULL && strstr(json, "\"uuid\":\"SIM-local-1\"") != NULL);
  EXPECT(json != NULL && strstr(json, "\"uuid\":\"host:local\"") != NULL);
  EXPECT(json != NULL && strstr(json, "\"to\":\"host:local\"") != NULL);
  EXPECT(json != NULL && strstr(json, "\"to\":\"SIM-local-1\"") != NULL);
  hf_free(json);
  hf_machine_close(machine);
  hf_machine_close(NULL);

  machine = NULL;
  EXPECT_REFUSED(hf_machine_open("{\"backend\": \"ho", &machine), HF_INVALID_ARGUMENT, "JSON");
  EXPECT_REFUSED(hf_machine_open("[]", &machine), HF_INVALID_ARGUMENT, "object");
  EXPECT_REFUSED(hf_machine_open("{\"gpus\": 2}", &machine), HF_INVALID_ARGUMENT, "\"gpus\"");
  EXPECT_REFUSED(hf_machine_open("{\"backend\": \"tpu\"}", &machine), HF_UNIMPLEMENTED, "tpu");
  EXPECT_REFUSED(hf_machine_open("{\"gpu_index\": 7}", &machine), HF_INVALID_ARGUMENT, "gpu_index");
  EXPECT_REFUSED(
      hf_machine_open("{\"backend\": \"cuda\", \"devices\": [{\"uuid\": \"a\"}]}", &machine),
      HF_INVALID_ARGUMENT, "simulated");
  EXPECT_REFUSED(
      hf_machine_open("{\"devices\": [{\"uuid\": \"a\", \"total_bytes\": -1}]}", &machine),
      HF_INVALID_ARGUMENT, "total_bytes");
  EXPECT_REFUSED(hf_machine_open("{\"devices\": [{\"total_bytes\": 1}]}", &machine),
                 HF_INVALID_ARGUMENT, "uuid");
  EXPECT_REFUSED(hf_machine_open(kMachine, NULL), HF_INVALID_ARGUMENT, "`machine` is NULL");
  EXPECT_REFUSED(hf_machine_describe(NULL, &json), HF_INVALID_ARGUMENT, "`machine` is NULL");
  EXPECT(machine == NULL);
}

static void PutFetchDrop(hf_engine* engine, int32_t tier, const char* device) {
  enum { kBytes = 100000 };
  unsigned char* source = malloc(kBytes);
  unsigned char* destination = calloc(1, kBytes);
  uint64_t released = 0;
  int64_t count = 0;
  hf_placement placement;
  for (int i = 0; i < kBytes; ++i) source[i] = (unsigned char)(i * 31 + tier);
  EXPECT(hf_put(engine, 0, 3, 1, source, kBytes, tier, device, -1, NULL, &placement) == HF_OK);
  EXPECT(placement.handle != 0);
  EXPECT(placement.tier == tier);
  EXPECT(placement.overflow == 0);
  /* Limit 0: wait until nothing is held back. */
  EXPECT(hf_take_releasable(engine, 0, NULL, &released, 1, &count) == HF_OK);
  EXPECT(count == 1 && released == placement.handle);
  memset(source, 0, kBytes); /* Ours again: what comes back must be the copy. */
  EXPECT(hf_fetch(engine, placement.handle, destination, 0, NULL) == HF_OK);
  EXPECT(hf_wait(engine, placement.handle, NULL) == HF_OK);
  for (int i = 0; i < kBytes; ++i) {
    if (destination[i] != (unsigned char)(i * 31 + tier)) {
      EXPECT(!"bytes came back changed");
      break;
    }
  }
  EXPECT_REFUSED(hf_quiesce(engine), HF_FAILED_PRECONDITION, "1");
  EXPECT(hf_drop(engine, placement.handle) == HF_OK);
  EXPECT_REFUSED(hf_set_limits(engine, -1, 0), HF_INVALID_ARGUMENT, "-1");
  EXPECT(hf_set_limits(engine, 1 << 20, 1 << 20) == HF_OK);
  EXPECT(hf_quiesce(engine) == HF_OK);
  EXPECT_REFUSED(hf_fetch(engine, placement.handle, destination, 0, NULL), HF_NOT_FOUND, "handle");
  free(source);
  free(destination);
}

static void TestEngine(void) {
  hf_machine* machine = NULL;
  hf_engine* engine = NULL;
  char* json = NULL;
  char* lease = "unset";
  hf_placement placement;
  char byte = 1;
  uint64_t handles[4];
  int64_t sizes[4];
  int64_t count = 0;
  EXPECT(hf_machine_open(kMachine, &machine) == HF_OK);
  EXPECT(hf_engine_open(machine, kEngine, &engine) == HF_OK);
  PutFetchDrop(engine, HF_TIER_PEER, "SIM-local-1");
  PutFetchDrop(engine, HF_TIER_PEER, NULL);
  PutFetchDrop(engine, HF_TIER_HOST, "");

  EXPECT(hf_put(engine, 0, 0, 0, &byte, 1, HF_TIER_KEEP, "", -1, NULL, &placement) == HF_OK);
  EXPECT(placement.handle == 0 && placement.tier == HF_TIER_KEEP && placement.overflow == 0);

  EXPECT(hf_engine_stats(engine, &json) == HF_OK);
  EXPECT(json != NULL && strstr(json, "\"puts\":{\"host\":1,\"keep\":1,\"peer\":2}") != NULL);
  EXPECT(json != NULL && strstr(json, "\"live_storages\":0") != NULL);
  hf_free(json);

  EXPECT(hf_report(engine, 1, 2, 3, 4, 5) == HF_OK);
  EXPECT(hf_take_revocation(engine, &lease) == HF_OK);
  EXPECT(lease == NULL);
  EXPECT(hf_next_to_prefetch(engine, handles, sizes, 4, &count) == HF_OK);
  EXPECT(count == 0);

  EXPECT_REFUSED(hf_put(NULL, 0, 0, 0, &byte, 1, HF_TIER_HOST, "", -1, NULL, &placement),
                 HF_INVALID_ARGUMENT, "`engine` is NULL");
  EXPECT_REFUSED(hf_put(engine, 0, 0, 0, NULL, 1, HF_TIER_HOST, "", -1, NULL, &placement),
                 HF_INVALID_ARGUMENT, "source");
  EXPECT_REFUSED(hf_put(engine, 0, 0, 0, &byte, 0, HF_TIER_HOST, "", -1, NULL, &placement),
                 HF_INVALID_ARGUMENT, "0 bytes");
  EXPECT_REFUSED(hf_put(engine, 0, 0, 0, &byte, 1, 7, "", -1, NULL, &placement),
                 HF_INVALID_ARGUMENT, "`tier` is 7");
  EXPECT_REFUSED(hf_fetch(engine, 12345, &byte, 0, NULL), HF_NOT_FOUND, "12345");
  EXPECT_REFUSED(hf_fetch(engine, 1, NULL, 0, NULL), HF_INVALID_ARGUMENT, "`destination` is NULL");
  EXPECT_REFUSED(hf_take_releasable(engine, 0, NULL, handles, -1, &count), HF_INVALID_ARGUMENT,
                 "capacity");
  EXPECT(hf_drop(engine, 12345) == HF_OK);
  hf_engine_close(engine);

  EXPECT_REFUSED(hf_engine_open(machine, "{\"gpu\": \"SIM-local-9\"}", &engine), HF_NOT_FOUND,
                 "SIM-local-9");
  EXPECT_REFUSED(hf_engine_open(machine, "{}", &engine), HF_INVALID_ARGUMENT, "gpu");
  EXPECT_REFUSED(hf_engine_open(machine, "{\"gpu\": \"SIM-local-0\", \"arenas\": []}", &engine),
                 HF_INVALID_ARGUMENT, "\"arenas\"");
  EXPECT_REFUSED(
      hf_engine_open(machine,
                     "{\"gpu\": \"SIM-local-0\", \"leases\": [{\"device\": \"SIM-local-1\","
                     " \"tier\": \"TIER_PEER\", \"bytes\": \"1GiB\"}]}",
                     &engine),
      HF_RESOURCE_EXHAUSTED, "SIM-local-1");
  EXPECT_REFUSED(
      hf_engine_open(machine,
                     "{\"gpu\": \"SIM-local-0\", \"leases\": [{\"device\": \"SIM-local-1\","
                     " \"tier\": \"TIER_PEER\", \"bytes\": 1, \"token\": \"00\"}]}",
                     &engine),
      HF_INVALID_ARGUMENT, "lease_id");
  EXPECT_REFUSED(hf_engine_open(NULL, kEngine, &engine), HF_INVALID_ARGUMENT, "`machine` is NULL");
  hf_machine_close(machine);
}

static const char kProblem[] =
    "{\"job_id\": \"j\", \"ranks\": [{\"rank\": 0, \"gpu\": \"SIM-local-0\", "
    "\"activation_budget\": "
    "\"2000000\", \"blocks\": ["
    "{\"name\": \"blocks.0\", \"forward_s\": 0.01, \"backward_s\": 0.02, \"storages\": ["
    "{\"ordinal\": 0, \"bytes\": 1000000, \"dtype\": \"float32\", \"shape\": [250000], "
    "\"isInput\": "
    "true}]},"
    "{\"name\": \"blocks.1\", \"forward_s\": 0.01, \"backward_s\": 0.02, \"storages\": ["
    "{\"ordinal\": 0, \"bytes\": 1000000, \"dtype\": \"float32\", \"shape\": [250000]}]}]}],"
    "\"devices\": [{\"uuid\": \"SIM-local-0\", \"node\": \"local\", \"usable_bytes\": 100000000},"
    "{\"uuid\": \"host:local\", \"node\": \"local\", \"is_host\": true, \"usable_bytes\": "
    "100000000, "
    "\"lendable_bytes\": 100000000}],"
    "\"links\": [{\"from\": \"SIM-local-0\", \"to\": \"host:local\", \"bytes_per_second\": 1e10}]}";

static void TestPlanner(void) {
  char* json = NULL;
  char* again = NULL;
  char cut[sizeof kProblem];
  EXPECT(hf_plan(kProblem, &json) == HF_OK);
  EXPECT(json != NULL && strstr(json, "\"blocks.1\"") != NULL);
  EXPECT(json != NULL && strstr(json, "\"predicted_activation_peak\"") != NULL);
  EXPECT(hf_plan(kProblem, &again) == HF_OK);
  EXPECT(json != NULL && again != NULL && strcmp(json, again) == 0);
  hf_free(json);
  hf_free(again);

  json = NULL;
  EXPECT_REFUSED(hf_plan(NULL, &json), HF_INVALID_ARGUMENT, "`problem_json` is NULL");
  EXPECT_REFUSED(hf_plan(kProblem, NULL), HF_INVALID_ARGUMENT, "`plan_json` is NULL");
  EXPECT_REFUSED(hf_plan("{\"rank\": []}", &json), HF_INVALID_ARGUMENT, "rank");
  EXPECT_REFUSED(hf_plan("not json", &json), HF_INVALID_ARGUMENT, "problem_json");
  memcpy(cut, kProblem, sizeof kProblem);
  *strstr(cut, "2000000") = '1'; /* A budget that nothing fits in. */
  EXPECT_REFUSED(hf_plan(cut, &json), HF_RESOURCE_EXHAUSTED, "smallest activation_budget");
  /* Cut short anywhere: an error each time, and never a crash. */
  for (size_t length = 1; length + 1 < sizeof kProblem; length += 7) {
    memcpy(cut, kProblem, length);
    cut[length] = '\0';
    EXPECT(hf_plan(cut, &json) == HF_INVALID_ARGUMENT);
  }
  EXPECT(json == NULL);
}

static void TestClient(void) {
  hf_client* client = NULL;
  char* json = NULL;
  EXPECT_REFUSED(hf_client_open("nowhere", NULL, &client), HF_INVALID_ARGUMENT, "nowhere");
  EXPECT_REFUSED(hf_client_open(NULL, NULL, &client), HF_INVALID_ARGUMENT, "`address` is NULL");
  EXPECT_REFUSED(hf_client_open("127.0.0.1:1", "{\"time\": 1}", &client), HF_INVALID_ARGUMENT,
                 "\"time\"");
  EXPECT(hf_client_open("127.0.0.1:1", "{\"timeout_s\": 0.2}", &client) == HF_OK);
  EXPECT_REFUSED(hf_call(client, "GetJobs", "{}", 0, &json), HF_UNIMPLEMENTED, "GetJobs");
  EXPECT_REFUSED(hf_call(client, "GetJob", "{\"id\": ", 0, &json), HF_INVALID_ARGUMENT, "JSON");
  EXPECT_REFUSED(hf_call(client, "GetJob", "{\"name\": \"x\"}", 0, &json), HF_INVALID_ARGUMENT,
                 "name");
  EXPECT_REFUSED(hf_call(client, "GetJob", "{\"id\": \"x\"}", 0.2, &json), HF_UNAVAILABLE,
                 "is hfcoordinator running there?");
  EXPECT_REFUSED(hf_call(NULL, "GetJob", "{}", 0, &json), HF_INVALID_ARGUMENT, "`client` is NULL");
  EXPECT(json == NULL);
  hf_client_close(client);
}

static void* FailElsewhere(void* unused) {
  int64_t bytes;
  (void)unused;
  hf_parse_bytes("elsewhere", &bytes);
  return NULL;
}

static void TestErrorsBelongToTheirThread(void) {
  pthread_t thread;
  int64_t bytes;
  EXPECT(hf_parse_bytes("here", &bytes) == HF_INVALID_ARGUMENT);
  pthread_create(&thread, NULL, FailElsewhere, NULL);
  pthread_join(thread, NULL);
  EXPECT(strstr(hf_last_error(), "here") != NULL);
  EXPECT(strstr(hf_last_error(), "elsewhere") == NULL);
}

/* A DataLoader worker: inherits handles whose threads stayed behind. */
static void TestForkedChildIsRefusedAndDoesNotHang(void) {
  hf_machine* machine = NULL;
  hf_engine* engine = NULL;
  int status = 0;
  pid_t child;
  EXPECT(hf_machine_open(kMachine, &machine) == HF_OK);
  EXPECT(hf_engine_open(machine, kEngine, &engine) == HF_OK);
  child = fork();
  if (child == 0) {
    int64_t bytes;
    alarm(10);
    if (hf_parse_bytes("1GiB", &bytes) != HF_FAILED_PRECONDITION) _exit(1);
    if (hf_quiesce(engine) != HF_FAILED_PRECONDITION) _exit(2);
    if (strstr(hf_last_error(), "fork") == NULL) _exit(3);
    hf_engine_close(engine);
    hf_machine_close(machine);
    _exit(0);
  }
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT(hf_quiesce(engine) == HF_OK);
  hf_engine_close(engine);
  hf_machine_close(machine);
}

int main(void) {
  TestVersionAndUnits();
  TestMachine();
  TestEngine();
  TestPlanner();
  TestClient();
  TestErrorsBelongToTheirThread();
  TestForkedChildIsRefusedAndDoesNotHang();
  if (failures == 0) puts("all well");
  return failures == 0 ? 0 : 1;
}
