"""Who plans and who lends: this process alone, or a coordinator and the node's agent."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import torch

from . import _native
from ._attach import attach_to_coordinator
from ._config import Cluster, cluster, parse_size
from ._engine import HOST, Backend, Engine
from ._group import world_size
from ._progress import progress, tell
from .errors import FailedPrecondition, HyperFramesError
from .plan import read_tier

_ASKING_S = 1.0  # For whom is waited: a word about it must not make the wait longer.
_MOST_NAMED = 20
_MEASURE = "HYPERFRAMES_MEASURE"  # Times copies and waits on CUDA, for stats().
_HOST_BYTES = "HYPERFRAMES_HOST_BYTES"
_RESERVE_BYTES = "HYPERFRAMES_RESERVE_BYTES"


def make_backend(device: torch.device) -> Backend:
    """The coordinator's when one is named, else the embedded one."""
    attach_to_coordinator(device)
    found = cluster()
    if found is not None:
        return ClusterBackend(device, found)
    return EmbeddedBackend(device)


def _machine_options(device: torch.device) -> dict[str, Any]:
    """The backend is where the model's parameters are, whatever the environment says."""
    options: dict[str, Any] = {"backend": "host"}
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        measure = bool(os.environ.get(_MEASURE))
        options = {"backend": "cuda", "gpu_index": index, "measure": measure}
        if os.environ.get(_RESERVE_BYTES):
            options["reserve_bytes"] = parse_size(os.environ[_RESERVE_BYTES], _RESERVE_BYTES)
    if os.environ.get(_HOST_BYTES):
        options["host_bytes"] = parse_size(os.environ[_HOST_BYTES], _HOST_BYTES)
    return options


def check_own_gpu(given: str, visible: list[str], index: int) -> None:
    """FailedPrecondition: the model is on another GPU than the coordinator gave to this rank."""
    if visible[index] == given:
        return
    where = f"use cuda:{visible.index(given)}" if given in visible else "it is not visible here"
    raise FailedPrecondition(
        f"The model is on cuda:{index} ({visible[index]}), and the coordinator gave {given} to "
        f"this rank: {where}. A script that computes on cuda:LOCAL_RANK finds its own."
    )


def _share_of_rank(description: dict[str, Any], ranks: int) -> dict[str, Any]:
    """What one of several ranks of this node may borrow: nothing from the GPUs that the ranks
    compute on, an equal share of everything else."""
    gpus = [device for device in description["devices"] if not device.get("is_host")]
    devices = []
    for device in description["devices"]:
        lendable = int(device.get("lendable_bytes", 0)) // ranks
        computes = device in gpus[:ranks]
        devices.append({**device, "lendable_bytes": 0 if computes else lendable})
    return {**description, "devices": devices}


def _engine_options(
    gpu: str, plan: dict[str, Any], leases: list[dict[str, Any]], options: dict[str, Any]
) -> dict[str, Any]:
    values = {
        "gpu": gpu,
        "stash_limit": int(plan.get("stash_limit", 0)),
        "prefetch_limit": int(plan.get("prefetch_limit", 0)),
        "verify": bool(options.get("verify", False)),
        "leases": leases,
    }
    for name in ("chaos", "measures_only"):
        if options.get(name):
            values[name] = options[name]
    return values


def _problem(
    rank_problems: list[dict[str, Any]], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    devices = [dict(device) for device in machine.get("devices", ())]
    for device in devices:
        if device.get("is_host") and options.get("host_budget") is not None:
            device["lendable_bytes"] = min(
                int(device.get("lendable_bytes", 0)), options["host_budget"]
            )
        if options.get("no_lenders"):
            device["lendable_bytes"] = 0
    return {
        "job_id": options.get("job_id", "embedded"),
        "ranks": rank_problems,
        "devices": devices,
        "links": machine.get("links", []),
        "forbidden_tiers": options.get("forbidden_tiers", []),
        "level_first": options.get("level_first", False),
        "forbid_recompute": options.get("forbid_recompute", False),
        "forbid_selective": options.get("forbid_selective", False),
    }


def _map(machine: _native.Machine, options: dict[str, Any]) -> Engine:
    """Opens an engine: its leases are allocated or mapped, and host memory is pinned."""
    leases = options["leases"]
    total = _native.format_bytes(sum(int(lease["bytes"]) for lease in leases))
    with progress(f"mapping {total} in {len(leases)} leases", watch=bool(leases)):
        return _native.NativeEngine(machine, options)


def _tell_host_note(description: dict[str, Any]) -> None:
    """Less host memory is lent than was asked for: once per node, with the setting to change."""
    note = str(description.get("host_note", ""))
    if note and os.environ.get("LOCAL_RANK", "0") == "0":
        tell(note + ".")


_told: set[tuple[str, str]] = set()  # Links about which was said what is to be said.


def _tell_unfit_links(description: dict[str, Any], gpu: str) -> set[str]:
    """The lenders whose link to `gpu` does not do what its kind promises; each is said once."""
    unfit = [link for link in description.get("unfit_links", ()) if link["from"] == gpu]
    for link in unfit:
        way = (gpu, str(link["to"]))
        if way not in _told and os.environ.get("LOCAL_RANK", "0") == "0":
            tell(str(link["sentence"]))
            _told.add(way)
    return {str(link["to"]) for link in unfit}


def _without_unfit_links(description: dict[str, Any], gpu: str) -> dict[str, Any]:
    """Nothing is lent to `gpu` over a link that is unfit."""
    unfit = _tell_unfit_links(description, gpu)
    devices = [
        {**device, "lendable_bytes": 0} if device["uuid"] in unfit else device
        for device in description["devices"]
    ]
    return {**description, "devices": devices}


class _OnMachine:
    """What both backends know of the machine that this process computes on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._machine = _native.Machine(_machine_options(device))

    def judge_collectives(self, gpus: list[str], measured: list[dict[str, Any]]) -> dict[str, Any]:
        """For the pre-flight (_preflight.Judge): by the same promises as ``hfctl doctor``."""
        return self._machine.judge_collectives({"gpus": gpus, "measured": measured})


class EmbeddedBackend(_OnMachine):
    """The planner in this process; this process allocates what it lends itself."""

    def __init__(self, device: torch.device, *, quiet: bool = False) -> None:
        super().__init__(device)
        self._description = self._machine.describe()
        if not quiet:
            _tell_host_note(self._description)
        gpus = [str(d["uuid"]) for d in self._description["devices"] if not d.get("is_host")]
        if not gpus:
            raise FailedPrecondition("The machine has no GPU, simulated or real, to compute on.")
        if device.type == "cuda":
            index = device.index if device.index is not None else torch.cuda.current_device()
            self._gpu = gpus[index]
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            if ranks > 1:
                self._description = _share_of_rank(self._description, ranks)
        else:
            index = int(os.environ.get("LOCAL_RANK", "0")) % len(gpus)
            self._gpu = os.environ.get("HYPERFRAMES_GPU") or gpus[index]
        self._description = _without_unfit_links(self._description, self._gpu)

    @property
    def gpu(self) -> str:
        return self._gpu

    @property
    def plans_once(self) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        return self._description

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        machine = self._description
        if options.get("group") and world_size() > 1:
            rank_problem, machine = _agree_on_problem(rank_problem, machine)
        answer = _native.plan(_problem([rank_problem], machine, options))
        if options.get("group") and world_size() > 1:
            _compare_hashes(answer)
        return answer

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        leases = [
            {"device": need["device"], "tier": need["tier"], "bytes": int(need["bytes"])}
            for need in plan.get("leases", ())
        ]
        return _map(self._machine, _engine_options(self._gpu, plan, leases, options))

    def close(self) -> None:
        # The machine closes with the last engine on it: frames may outlive the session.
        pass


def _agree_on_problem(
    rank_problem: dict[str, Any], machine: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every rank plans the largest rank's problem, so that all have the same policies."""
    gathered: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(gathered, (rank_problem, machine))

    def weight(item: tuple[dict[str, Any], dict[str, Any]]) -> int:
        blocks = item[0]["blocks"]
        return sum(int(s["bytes"]) for block in blocks for s in block["storages"])

    chosen: tuple[dict[str, Any], dict[str, Any]] = max(gathered, key=weight)
    return {**chosen[0], "rank": 0}, chosen[1]


def _compare_hashes(answer: dict[str, Any]) -> None:
    mine = hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()
    gathered: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(gathered, mine)
    if len(set(gathered)) != 1:
        raise FailedPrecondition(
            f"The ranks planned differently (hashes {sorted(set(gathered))[:4]}): run the same "
            "release of HyperFrames on all of them."
        )


def _across_nodes(grant: dict[str, Any]) -> dict[str, Any]:
    """What a lease on another node needs besides: frames get there through hftransfer."""
    if not grant.get("transfer_address"):
        return {}
    return {
        "node": grant.get("node", ""),
        "transfer_address": grant["transfer_address"],
        "staging_bytes": int(grant.get("staging_bytes", 0)),
    }


class ClusterBackend(_OnMachine):
    """Plans from the coordinator; leases from the agents, mapped through their sockets."""

    def __init__(self, device: torch.device, where: Cluster) -> None:
        super().__init__(device)
        self._where = where
        self._description = self._machine.describe()
        own = [str(d["uuid"]) for d in self._description["devices"] if not d.get("is_host")]
        self._gpu = where.gpu or (own[0] if own else "")
        if device.type == "cuda":
            index = device.index if device.index is not None else torch.cuda.current_device()
            check_own_gpu(self._gpu, own, index)
        # The coordinator knows the links as agents measured them, and prices them in its plan.
        _tell_unfit_links(self._description, self._gpu)
        self._answer: dict[str, Any] = {}  # CreatePlanResponse; empty before the first plan.

    @property
    def gpu(self) -> str:
        return self._gpu

    @property
    def plans_once(self) -> bool:
        return True

    def describe(self) -> dict[str, Any]:
        return self._description

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        if self._answer:
            # A rank meets a new shape alone: it plans within what it was granted, so that nobody
            # has to wait for ranks that met none.
            return _native.plan(_problem([rank_problem], self._leased_machine(), options))
        answer = self._ask(
            {
                "version": {"major": 1, "minor": 0},
                "job_id": self._where.job_id,
                "job_token": self._where.job_token,
                "rank": {**rank_problem, "rank": self._where.rank, "gpu": self._gpu},
                "forbidden_tiers": options.get("forbidden_tiers", []),
                "level_first": options.get("level_first", False),
                "forbid_recompute": options.get("forbid_recompute", False),
                "forbid_selective": options.get("forbid_selective", False),
                "world_size": self._where.world_size,
                "worker_id": os.environ.get("HYPERFRAMES_WORKER_ID", ""),
            }
        )
        self._answer = answer
        return {
            "id": answer.get("plan_id", ""),
            "epoch": answer.get("plan_epoch", 0),
            "advice": answer.get("advice", ""),
            "ranks": [{**answer["plan"], "rank": 0}],
        }

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """CreatePlan. Until every rank has asked, or for as long as HYPERFRAMES_PLAN_TIMEOUT."""
        client = _native.NativeClient(self._where.address, {})
        where = self._where
        what = (
            f"rank {where.rank} waits for the plan of job {where.job_id} from {where.address}, "
            f"at most {where.plan_timeout_s:g} s"
        )
        try:
            with progress(what, watch=True, ask=self._who_is_missing):
                return client.call("CreatePlan", request, where.plan_timeout_s)
        finally:
            client.close()

    def _who_is_missing(self) -> str:
        """Ranks whose workers do not run, as far as the coordinator says."""
        try:
            client = _native.NativeClient(self._where.address, {})
            try:
                job = client.call("GetJob", {"id": self._where.job_id}, _ASKING_S)
            finally:
                client.close()
        except HyperFramesError:
            return "the coordinator does not answer"
        absent = [
            str(worker.get("rank", 0))
            for worker in job.get("workers", ())
            if worker.get("report", {}).get("state") != "WORKER_STATE_RUNNING"
        ]
        if absent:
            return f"not running: rank {', '.join(absent[:_MOST_NAMED])}"
        return "all ranks run; one has not asked yet"

    def _leased_machine(self) -> dict[str, Any]:
        """This rank's GPU, its leases, and the links as the coordinator knew them."""
        own: dict[str, Any] = next(
            (d for d in self._description["devices"] if d["uuid"] == self._gpu), {}
        )
        gpu = self._answer.get("gpu") or {**own, "uuid": self._gpu}  # An older one does not say.
        devices = [{**gpu, "is_host": False, "lendable_bytes": 0}]
        devices += [
            {
                "uuid": grant["device"],
                "node": grant.get("node", "") or gpu.get("node", ""),
                "is_host": read_tier(grant.get("tier", 0)) == HOST,
                "usable_bytes": int(grant["bytes"]),
                "lendable_bytes": int(grant["bytes"]),
            }
            for grant in self._answer.get("leases", ())
        ]
        return {"devices": devices, "links": self._answer.get("links", [])}

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        leases = [
            {
                "device": grant["device"],
                "tier": grant["tier"],
                "bytes": int(grant["bytes"]),
                "lease_id": grant.get("lease_id", ""),
                "token": grant.get("token", ""),
                "worker_socket": grant.get("worker_socket", "")
                or os.environ.get("HYPERFRAMES_WORKER_SOCKET", ""),
                **_across_nodes(grant),
            }
            for grant in ([] if options.get("no_lenders") else self._answer.get("leases", ()))
            if not (options.get("no_host") and read_tier(grant.get("tier", 0)) == HOST)
        ]
        return _map(self._machine, _engine_options(self._gpu, plan, leases, options))

    def close(self) -> None:
        pass
