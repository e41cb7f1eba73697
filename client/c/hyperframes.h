/* C ABI of HyperFrames: libhyperframes.so. Exports hf_* only.
 *
 * Every function that can fail returns an hf_code; hf_last_error() then gives the sentence, valid
 * on the same thread until its next hf_* call that fails. Strings are UTF-8. Structured values
 * travel as JSON of the messages in proto/hyperframes/v1 (lowerCamelCase or snake_case are both
 * read; snake_case is written, with defaults); an unknown field is refused by name. As in every
 * protobuf JSON, 64-bit integers are written as strings ("bytes": "4096") and read as strings or
 * numbers; enums are names ("TIER_PEER"). Strings that the library returns are freed with hf_free.
 * Thread-safe unless said otherwise. After fork() every call in the child of a process that had
 * used the library returns HF_FAILED_PRECONDITION, and closing does nothing.
 */
#ifndef HYPERFRAMES_CLIENT_C_HYPERFRAMES_H_
#define HYPERFRAMES_CLIENT_C_HYPERFRAMES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF_ABI_MAJOR 1
#define HF_ABI_MINOR 0

/* The numbers of absl::StatusCode and of gRPC. */
typedef int32_t hf_code;
enum {
  HF_OK = 0,
  HF_CANCELLED = 1,
  HF_UNKNOWN = 2,
  HF_INVALID_ARGUMENT = 3,
  HF_DEADLINE_EXCEEDED = 4,
  HF_NOT_FOUND = 5,
  HF_ALREADY_EXISTS = 6,
  HF_PERMISSION_DENIED = 7,
  HF_RESOURCE_EXHAUSTED = 8,
  HF_FAILED_PRECONDITION = 9,
  HF_ABORTED = 10,
  HF_OUT_OF_RANGE = 11,
  HF_UNIMPLEMENTED = 12,
  HF_INTERNAL = 13,
  HF_UNAVAILABLE = 14,
  HF_DATA_LOSS = 15,
  HF_UNAUTHENTICATED = 16
};

enum { HF_TIER_KEEP = 0, HF_TIER_PEER = 1, HF_TIER_HOST = 2 };

/* HF_ABI_MAJOR << 16 | HF_ABI_MINOR of the library. */
uint32_t hf_abi_version(void);
/* "0.1.0". Static. */
const char* hf_version(void);
const char* hf_last_error(void);
void hf_free(void* memory);

/* ---- Units: the one parser (common/units.h). ---- */
hf_code hf_parse_bytes(const char* text, int64_t* bytes);
hf_code hf_parse_duration(const char* text, double* seconds);
/* Writes at most `capacity` bytes with the final zero. */
hf_code hf_format_bytes(int64_t bytes, char* out, int64_t capacity);

/* ---- Planner: PlanProblem JSON in, FramePlan JSON out. Pure. ---- */
hf_code hf_plan(const char* problem_json, char** plan_json);

/* ---- Machine: the GPUs and host memory that an embedded process can use. ----
 * options_json: {"backend": "host", "devices": [{"uuid", "total_bytes", "peer_bandwidth",
 * "host_bandwidth", "latency_s", "compute_slowdown"}], "host_bytes": N}; bandwidths in bytes/s, 0 =
 * as fast as memory. With {"backend": "host"} alone, HYPERFRAMES_HOST_DEVICES describes them
 * ("2 x 1GiB"), else one device without peers and half of the free memory as host.
 * {"backend": "cuda", "host_bytes": N, "gpu_index": I, "reserve_bytes": N, "measure": bool}: the
 * GPUs that CUDA sees in this process. "gpu_index" (either backend) is the one that computes, in
 * CUDA's order; the others may lend all but their reserve (1GiB). "measure" times copies and waits,
 * with two more events each. Without "backend", HYPERFRAMES_BACKEND decides ("host").
 * HYPERFRAMES_NODE names the node ("local"), and with it "host:<node>". machine_json: {"devices":
 * [DeviceProfile...], "links": [LinkProfile...], "unfit_links": [{"from", "to", "sentence"}...],
 * "host_note": why not all host_bytes, or ""}, links measured now. Lend nothing over an unfit one:
 * less than a tenth of what its kind promises, or no way. hf_judge_collectives: of those that the
 * ranks of a job measured; JSON as in client/c/unfit_collectives.h. */
typedef struct hf_machine hf_machine;
hf_code hf_machine_open(const char* options_json, hf_machine** machine);
hf_code hf_machine_describe(hf_machine* machine, char** machine_json);
hf_code hf_judge_collectives(hf_machine* machine, const char* measured_json, char** verdict_json);
void hf_machine_close(hf_machine* machine); /* Engines on it must have been closed. */

/* ---- Engine ----
 * options_json: {"gpu": uuid, "stash_limit", "prefetch_limit", "verify", "chaos": {"seed",
 * "longest_delay_s", "skip_direction": "out"|"in", "skip_tier": "peer"|"host"}, "leases":
 * [{"device", "tier": "TIER_PEER"|"TIER_HOST", "bytes"[, "lease_id", "token", "worker_socket"]}]}.
 * A lease with a token is mapped from the agent behind worker_socket; one without is allocated
 * here. "measures_only": no agent hears of it. On "cuda" host memory is pinned first, 3 GiB/s. */
typedef struct hf_engine hf_engine;
hf_code hf_engine_open(hf_machine* machine, const char* options_json, hf_engine** engine);
/* Waits for copies under way, unmaps and returns leases. */
void hf_engine_close(hf_engine* engine);

typedef struct hf_placement {
  uint64_t handle;  /* 0: stayed; the caller keeps the source. */
  int32_t tier;     /* Where it really went. */
  int32_t overflow; /* 1 when the plan's tier was full. */
} hf_placement;

/* See agent/engine/frame_engine.h for the contract of each. `device` is the lender's UUID, or ""
 * for any of the tier. compute_stream: cudaStream_t, or NULL on the host backend. */
hf_code hf_put(hf_engine* engine, int32_t micro_batch, int32_t block, int32_t ordinal,
               const void* source, int64_t bytes, int32_t tier, const char* device,
               int64_t preferred_offset, void* compute_stream, hf_placement* placement);
hf_code hf_take_releasable(hf_engine* engine, int64_t limit, void* compute_stream,
                           uint64_t* handles, int64_t capacity, int64_t* count);
hf_code hf_fetch(hf_engine* engine, uint64_t handle, void* destination, int32_t is_prefetch,
                 void* compute_stream);
hf_code hf_wait(hf_engine* engine, uint64_t handle, void* compute_stream);
hf_code hf_next_to_prefetch(hf_engine* engine, uint64_t* handles, int64_t* bytes, int64_t capacity,
                            int64_t* count);
hf_code hf_drop(hf_engine* engine, uint64_t handle);
/* Another plan's limits hold from now on, in place of those that the engine was opened with. */
hf_code hf_set_limits(hf_engine* engine, int64_t stash_limit, int64_t prefetch_limit);
hf_code hf_quiesce(hf_engine* engine);
/* EngineStats as JSON, names as in frame_engine.h; durations in seconds; arrays by tier as
 * {"keep", "peer", "host"}. */
hf_code hf_engine_stats(hf_engine* engine, char** stats_json);
/* What only the front can know, written to the counters page for the exporter and `hfctl top`. */
hf_code hf_report(hf_engine* engine, int64_t steps, int64_t activation_bytes,
                  int64_t activation_peak_bytes, int64_t recompute_ns,
                  int64_t predicted_peak_bytes);
/* Also to the counters page: micro-batches run on one pipeline stage (0 to 63; a model that is not
 * cut is stage 0) and their nanoseconds, all since the process began. */
hf_code hf_report_micro_batches(hf_engine* engine, int32_t stage, int64_t count, int64_t run_ns,
                                int64_t wait_ns);
/* A lease that the agent asks back (by closing the engine when quiescent), or NULL in *lease_id. */
hf_code hf_take_revocation(hf_engine* engine, char** lease_id);

/* ---- Coordinator ----
 * options_json: {"timeout_s", "ca_file", ...}. hf_call: `method` is a name of the services in
 * coordinator.proto ("SubmitJob", "GetJob", "ListJobs", "WatchJob", "CancelJob", "PreemptJob",
 * "AttachJob", "DetachJob", "ReadLog", "ListNodes", "CreatePlan", "GetPlan") or checkpoint.proto
 * ("BeginCheckpoint", "PrepareCheckpoint", "CommitCheckpoint", "AbortCheckpoint",
 * "WatchCheckpoint", "RetireCheckpoint", "ListCheckpoints"); request and response are its messages
 * as JSON. Protocol versions are filled in. All calls are idempotent and retried until timeout_s
 * (<= 0: the default, and for calls that watch their wait_s more). UNAVAILABLE: the coordinator
 * cannot be reached; the message names address and remedy. */
typedef struct hf_client hf_client;
hf_code hf_client_open(const char* address, const char* options_json, hf_client** client);
hf_code hf_call(hf_client* client, const char* method, const char* request_json, double timeout_s,
                char** response_json);
void hf_client_close(hf_client* client);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HYPERFRAMES_CLIENT_C_HYPERFRAMES_H_ */
