"""What run.py runs: commands, their limits, and what each takes on one or two H200."""

from __future__ import annotations

from dataclasses import dataclass

FINETUNE = ("python", "tests/bench/finetune.py")
LLAMA = ("python", "tests/bench/llama.py")
CASES = (  # Apart from the checkout's own settings, which name tools that need not be there.
    "python", "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir=tests", "--timeout=120",
    "--confcutdir=tests/cases", "--import-mode=importlib", "-p", "no:cacheprovider",
)  # fmt: skip
# A machine may be given memory only as it uses it: half of what is free would be too little.
MUCH_HOST_MEMORY = (("HYPERFRAMES_HOST_BYTES", "96GiB"),)
# Checkpointing's longest is 104K there: the first is 1.54 times that. After one that does not train
# none is tried.
LONG = "163840,176128"
# Near its limit a GPU is lost to pieces without it, in every mode.
WHOLE_SEGMENTS = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
LONGEST = ("--part", "longest", "--alike", "3", "--patience", "240")

# Steps that one GPU seen as two can take: they count bytes and compare bits. No step of times.
TWIN = frozenset({
    "lending", "conformance", "chaos", "agent_lending", "peer_64k", "peer_128k", "longest_peer",
    "longest_peer_two",
    "cluster", "cases_on_gpus", "train", "train_200", "memcheck",
})  # fmt: skip
MUCH_TWIN_MEMORY = (("HYPERFRAMES_TWIN_BYTES", str(80 << 30)),)  # Read where there is a twin.


@dataclass(frozen=True)
class Step:
    """One command; ``python`` is this interpreter, other names are programs of bazel-bin."""

    name: str
    command: tuple[str, ...]
    limit_s: int
    gpus: int = 1
    shows: str = ""
    expected_s: int = 0
    environment: tuple[tuple[str, str], ...] = ()


def others(name: str, length: str, modes: str, expected_s: int) -> Step:
    """Other systems beside nothing and full checkpointing, on one GPU."""
    command = (
        *FINETUNE, "--lengths", length, "--modes", f"nothing,checkpoint,{modes}", "--once",
        "--early", "--rounds", "2", "--steps", "2", "--seconds", "90",
    )  # fmt: skip
    return Step(name, command, 180, 1, "finetune.json: other systems", expected_s)


# By what they are worth: whoever has less time takes the first. Steps may run at once (a plus)
# where they measure neither times nor all of a GPU's bytes: longest_checkpoint, longest_inputs,
# cases, cases_on_gpus, train, train_200, memcheck.
STEPS = (
    Step("doctor", ("client/cli/hfctl", "doctor"), 30, 1, "what links carry against their promise",
         8),
    Step("lending", ("agent/device/cuda/lending_test", "--gtest_brief=1"), 60, 2,
         "a lease outlives its lender, which is hidden from the borrower", 8),
    Step(
        "conformance",
        ("agent/device/device_conformance_test", "--gtest_brief=1", "--gtest_filter=*cuda*"),
        120, 1, "the device interface's promises on CUDA", 10,
    ),
    Step(
        "chaos", ("agent/engine/chaos_test", "--gtest_brief=1", "--gtest_filter=*cuda*"),
        120, 1, "a removed event is found in every lane", 15,
    ),
    Step("agent_lending", ("agent/service/gpu_lending_test", "--gtest_brief=1"), 60, 1,
         "a real agent's leases, adopted, and every byte back", 10),
    Step(
        "peer_32k",
        (*FINETUNE, "--lengths", "32k", "--modes", "nothing,checkpoint,peer", "--steps", "2",
         "--once", "--seconds", "200"),
        300, 2, "finetune.json, the ceiling", 140,
    ),
    Step(
        "peer_8k",
        (*FINETUNE, "--lengths", "8k", "--modes", "nothing,checkpoint,peer", "--rounds", "5",
         "--once", "--seconds", "90"),
        150, 2, "finetune.json", 50,
    ),
    Step("engine", ("tests/bench/engine",), 90, 1, "engine.json", 15),
    Step("node_to_node", ("tests/bench/node_to_node", "--backend=cuda", "--rounds=5"), 120, 1,
         "node_to_node.json", 35),
    Step(
        "peer_64k",
        (*FINETUNE, "--lengths", "64k", "--modes", "checkpoint,peer", "--rounds", "2", "--steps",
         "1", "--once", "--early", "--patience", "180", "--seconds", "200"),
        300, 2, "finetune.json", 175, MUCH_TWIN_MEMORY,
    ),
    Step(
        "peer_128k",
        (*FINETUNE, "--lengths", "128k", "--modes", "checkpoint,peer", "--rounds", "1", "--steps",
         "1", "--warm", "0", "--tries", "1", "--once", "--early", "--alike", "3", "--patience",
         "200"),
        340, 2, "finetune.json", 215, MUCH_TWIN_MEMORY,
    ),
    Step("longest_checkpoint", (*FINETUNE, *LONGEST, "--modes", "checkpoint", "--seconds", "200"),
         300, 1, "finetune.json, capped at 40 GiB", 80,
         (("CUDA_VISIBLE_DEVICES", "0"), *WHOLE_SEGMENTS)),
    Step(
        "longest_inputs",
        (*FINETUNE, *LONGEST, "--modes", "checkpoint_inputs_on_host", "--seconds", "200"),
        400, 2, "finetune.json, on the second GPU", 190,
        (("CUDA_VISIBLE_DEVICES", "1"), *WHOLE_SEGMENTS),
    ),
    # One trial that trains is enough: it is compared with the longest of the others.
    Step("longest_peer_two", (*FINETUNE, *LONGEST, "--modes", "peer", "--lend", "64GiB",
                              "--lengths", LONG, "--patience", "400"), 480, 2,
         "longest_peer where one lender stands for two", 110, WHOLE_SEGMENTS),
    Step("longest_peer", (*FINETUNE, *LONGEST, "--modes", "peer", "--seconds", "100"), 400, 2,
         "finetune.json, every GPU capped", 130, WHOLE_SEGMENTS),
    Step(
        "jobs",
        (*FINETUNE, "--part", "jobs", "--rounds", "2", "--steps", "2", "--once", "--patience",
         "240", "--seconds", "240"),
        360, 2, "finetune.json: as many jobs as GPUs, host memory alone lends", 165,
        (("HYPERFRAMES_HOST_BYTES", "112GiB"),),
    ),
    Step("lender", (*FINETUNE, "--part", "lender"), 120, 2, "finetune.json", 35),
    Step("cluster", ("python", "tests/gpus/cluster_on_gpus.py"), 290, 1,
         "a job borrows through an agent, of one GPU host memory; agent and worker killed", 110),
    Step("cases", (*CASES, "-n", "8", "--dist", "loadfile", "--ignore=tests/cases/test_on_gpus.py",
                   "tests/cases"),
         400, 1, "T1 to T27 on CUDA", 90),
    Step("cases_on_gpus", (*CASES, "tests/cases/test_on_gpus.py"), 200, 1,
         "those cases that only GPUs have", 45),
    Step("train", ("python", "tests/gpus/train_on_gpus.py"), 240, 1, "bit-equal in every mode", 90),
    Step(
        "train_200",
        ("python", "tests/gpus/train_on_gpus.py", "--steps", "200", "--dtype", "bfloat16",
         "--modes", "nothing,peer,host,auto"),
        200, 1, "200 steps, flat after the third", 60,
    ),
    Step(
        "memcheck",
        ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode",
         "9", "agent/device/device_conformance_test", "--gtest_brief=1",
         "--gtest_filter=*cuda*:-*HasLinks*:*NeverRecycled*:*DelaysOne*:*TakesBytes*"),
        300, 1, "no error of memory", 60,
    ),
    Step(
        "compiled_8k",
        (*FINETUNE, "--lengths", "8k", "--modes",
         "nothing_compiled,checkpoint_compiled,peer_compiled", "--once", "--seconds", "150"),
        300, 2, "finetune.json", 150,
    ),
    Step(
        "llama_8k",
        (*LLAMA, "--lengths", "8k", "--modes", "nothing,checkpoint,peer", "--once", "--steps", "2",
         "--seconds", "120"),
        240, 2, "llama.json", 110,
    ),
    Step(
        "fsdp2",
        (*LLAMA, "--part", "fsdp2", "--lengths", "4k", "--cap", "56GiB", "--steps", "2",
         "--seconds", "100"),
        300, 2, "llama.json: checkpoint, then auto, every GPU capped at 56 GiB", 170,
        MUCH_HOST_MEMORY,
    ),
    Step(
        "article",
        (*FINETUNE, "--part", "article", "--rounds", "2", "--steps", "2", "--once"),
        240, 2, "finetune.json: with as many lenders as there are", 80,
    ),
    Step(
        "across_nodes",
        ("python", "tests/bench/across_nodes.py", "--backend=cuda", "--length=4096", "--share=0.6",
         "--steps=16", "--warm=2", "--rounds=1", "--modes=nothing,near,far"),
        300, 2, "a job whose frames cross two nodes: across_nodes.json", 130,
    ),
    Step(
        "host_32k",
        (*FINETUNE, "--lengths", "32k", "--modes", "nothing,checkpoint,host", "--steps", "2",
         "--once", "--seconds", "200"),
        360, 1, "finetune.json", 190, MUCH_HOST_MEMORY,
    ),
    # Those below take one GPU and the host's memory.
    Step(
        "longest_inputs_alone",
        (*FINETUNE, *LONGEST, "--modes", "checkpoint_inputs_on_host", "--seconds", "200"),
        400, 1, "longest_inputs, on the first GPU", 220, WHOLE_SEGMENTS,
    ),
    Step(
        "host_8k",
        (*FINETUNE, "--lengths", "8k", "--modes", "nothing,checkpoint,host", "--once", "--seconds",
         "60"),
        150, 1, "finetune.json", 50, MUCH_HOST_MEMORY,
    ),
    Step(
        "host_16k",
        (*FINETUNE, "--lengths", "16k", "--modes", "nothing,checkpoint,host", "--rounds", "2",
         "--steps", "2", "--once", "--seconds", "90"),
        200, 1, "finetune.json", 90, MUCH_HOST_MEMORY,
    ),
    Step(
        "compiled_8k_host",
        (*FINETUNE, "--lengths", "8k", "--modes",
         "nothing_compiled,checkpoint_compiled,host_compiled", "--once", "--seconds", "120"),
        240, 1, "finetune.json", 65, MUCH_HOST_MEMORY,
    ),
    Step(
        "compiled_8k_host_budget",
        (*FINETUNE, "--lengths", "8k", "--modes",
         "nothing_compiled,checkpoint_compiled,host_budget_75_compiled", "--once", "--seconds",
         "120"),
        240, 1, "finetune.json: torch's budget leaves less to move", 65, MUCH_HOST_MEMORY,
    ),
    Step(
        "llama_8k_host",
        (*LLAMA, "--lengths", "8k", "--modes", "nothing,checkpoint,host", "--once", "--steps", "2",
         "--patience", "180", "--seconds", "150"),
        300, 1, "llama.json", 70, MUCH_HOST_MEMORY,
    ),
    Step(
        "budgets_8k",
        (*FINETUNE, "--lengths", "8k", "--modes",
         "nothing_compiled,checkpoint_compiled,memory_budget_25_compiled,"
         "memory_budget_50_compiled,memory_budget_75_compiled", "--once", "--early", "--rounds",
         "2", "--seconds", "60"),
        180, 1, "finetune.json: torch's own activation memory budgets", 65,
    ),
    others("offload_8k", "8k", "checkpoint_inputs_on_host,offload_activations", 80),
    others("save_on_cpu_8k", "8k", "save_on_cpu", 60),
    others("others_16k", "16k",
           "checkpoint_inputs_on_host,selective_attention,selective_attention_matmul", 80),
    others("others_32k", "32k", "selective_attention,selective_attention_matmul", 110),
    Step(
        "compiled_32k_host",
        (*FINETUNE, "--lengths", "32k", "--modes",
         "nothing_compiled,checkpoint_compiled,host_compiled", "--once", "--early", "--rounds", "2",
         "--steps", "2", "--seconds", "150"),
        300, 1, "finetune.json", 170, MUCH_HOST_MEMORY,
    ),
    Step(
        "auto_32k",
        (*FINETUNE, "--lengths", "32k", "--modes", "nothing,checkpoint,auto", "--rounds", "2",
         "--steps", "2", "--once", "--early", "--seconds", "150"),
        300, 1, "finetune.json", 170, MUCH_HOST_MEMORY,
    ),
    Step(
        "longest_host",
        (*FINETUNE, *LONGEST, "--modes", "host", "--lengths", LONG, "--patience", "400"),
        500, 1, "finetune.json, capped at 40 GiB", 140,
        (*MUCH_HOST_MEMORY, *WHOLE_SEGMENTS),
    ),
)  # fmt: skip
