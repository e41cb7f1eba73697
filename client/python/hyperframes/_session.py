"""The context that a user enters: hooks on the blocks, one pair of saved-tensor hooks, the plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, cast

import torch
from torch import nn

from . import _guard
from ._arguments import as_sample, written_argument
from ._backend import make_backend
from ._blocks import REST, Ledger, discover_blocks, stays_reason
from ._compiled import around_compiled, call_attribute, refuse_while_traced, replace_call
from ._config import Size, mode, parse_limits
from ._engine import KEEP, Backend
from ._frames import FrameStore, Kept, describe_tensor
from ._gathered import gathers_weights, refuse_late_sharding, watch_gathered
from ._gradients import watch_gradients
from ._host_memory import open_engine
from ._inflight import InFlight
from ._meter import (
    ActivationMeter,
    ParameterStorages,
    announce,
    observe_everywhere,
    passing_hooks,
    top_hooks,
    withdraw,
)
from ._planbook import PlanBook
from ._profiler import model_device, profile
from ._refusals import (
    is_compiled,
    judge_inner_hooks,
    refuse_checkpointing,
    refuse_graph_capture,
    refuse_moved_model,
    refuse_outer_hooks,
    refuse_subclass,
    unwrap,
)
from ._registry import register
from ._replays import Replays
from ._reporting import summarize
from .errors import FailedPrecondition
from .plan import Plan
from .profile import Profile, Signature, StorageInfo, signature_of

_PLAIN = torch.Tensor.__torch_dispatch__


class Session:
    """One ``with hf.hyperframes(...)``. Public methods: plan, stats(), explain()."""

    def __init__(
        self,
        model: nn.Module,
        *,
        profile: Profile | None = None,
        sample_input: Any = None,
        loss_fn: Callable[[Any], torch.Tensor] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        dtype: torch.dtype | None = None,
        blocks: Iterable[str] | None = None,
        budget: Size = None,
        activation_budget: Size = None,
        host_budget: Size = None,
        forbid: Iterable[str] = (),
        pin: Mapping[str, str] | None = None,
        objective: str = "time",
        verify: bool = False,
        allow_checkpointing: bool = False,
        _backend: Backend | None = None,
        _chaos: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._off = mode() == "off"
        if self._off:
            return
        self._root = unwrap(model)
        self._limits = parse_limits(budget, activation_budget, host_budget, forbid, objective)
        self._pins = dict(pin or {})
        self._allow_checkpointing = allow_checkpointing
        refuse_checkpointing(self._root, allow_checkpointing)
        self._block_names = list(blocks) if blocks is not None else None
        self._blocks = discover_blocks(self._root, self._block_names)
        self._profile = profile
        self._sample: dict[str, Any] = {
            "sample_input": sample_input, "loss_fn": loss_fn, "optimizer": optimizer,
            "dtype": dtype,
        }  # fmt: skip
        self._engine_options = {"verify": verify, "chaos": dict(_chaos) if _chaos else None}
        self._backend = _backend
        self._entered = False
        self._suspended = False
        self._undo: list[Callable[[], None]] = []
        self._hooks: passing_hooks | None = None
        self._book: PlanBook | None = None
        self._plan: Plan | None = None
        self._store: FrameStore | None = None
        self._leased: dict[str, int] = {}
        self._parameters = ParameterStorages()
        self._gathers = any(gathers_weights(part) for part in self._root.modules())
        self._signature: Signature = ()
        self._micro_batch = 0
        self._in_flight = InFlight()
        self._replays = Replays()
        self._counts = {
            "steps": 0, "forwards": 0, "unplanned_storages": 0, "unplanned_bytes": 0,
            "checkpoints_seen": 0,
        }  # fmt: skip
        self._last_engine_stats: dict[str, Any] = {}

    def __enter__(self) -> nn.Module:
        if self._off:
            return self._model
        if self._entered:
            raise FailedPrecondition("This context was entered before: make a new one.")
        refuse_outer_hooks()
        self._entered = True
        self._device = model_device(self._root)
        self._ledger = Ledger(self._device)
        self._meter = ActivationMeter(self._root)
        if self._profile is None and self._sample["sample_input"] is not None:
            self._profile = profile(
                self._root,
                blocks=self._block_names,
                allow_checkpointing=self._allow_checkpointing,
                **self._sample,
            )
        if self._profile is not None:
            self._start(self._profile)
        try:
            self._install()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        register(self._model, self)
        return self._model

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._off:
            return
        self._uninstall(kind, error, trace)
        if self._store is not None:
            self._close(self._store)
        self._let_go()

    def _close(self, store: FrameStore) -> None:
        self._end_step()
        ended = store.quiesce()
        self._last_engine_stats = store.engine.stats()
        if ended:
            return store.close()
        # Of a graph that outlives the context (retained, or held by an error's traceback) the
        # frames alone keep the engine, which closes with the last of them.
        store.release_sources(0)
        self._store = None

    def _let_go(self) -> None:
        """hf.stats() finds this object for as long as the model lives: were the model held from
        here, with its optimizer, both would live for ever."""
        del self._model, self._root
        self._blocks = {}
        self._sample = {}
        self._ledger.begin_forward()
        self._meter.forget_model()

    def _install(self) -> None:
        undo = self._undo
        root = self._root
        undo.append(
            root.register_forward_pre_hook(self._before_root, with_kwargs=True, prepend=True).remove
        )
        undo.append(root.register_forward_hook(self._after_root, always_call=True).remove)
        undo.append(watch_gathered(root, lambda part: self._parameters.add(part)))
        for name, module in self._blocks.items():
            self._install_block(name, module)
        _guard.listen(self._see_hooks)
        undo.append(lambda: _guard.unlisten(self._see_hooks))
        self._meter.__enter__()
        undo.append(lambda: self._meter.__exit__(None, None, None))
        announce(self)
        undo.append(lambda: withdraw(self))
        self._hooks = passing_hooks(self._pack, self._unpack)
        self._hooks.__enter__()

    def _install_block(self, name: str, module: nn.Module) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            refuse_while_traced(name)
            if self._passes():
                self._ledger.enter_unseen()
            else:
                self._ledger.enter(name, module, args, kwargs)

        def after(module: nn.Module, *_: Any) -> None:
            self._ledger.leave(module)

        undo = self._undo
        compiled = is_compiled(module)
        if not compiled:
            hook = module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            undo += [hook.remove, module.register_forward_hook(after, always_call=True).remove]
        original = getattr(module, call_attribute(module))

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = self._ledger.current_block(module)
            # Under a checkpoint of the user's the block must save the same in both its runs.
            if (
                call is None
                or self._passes()
                or not self._recomputes(call.key)
                or not self._is_on_top()
                or written_argument(args, kwargs)
            ):
                return original(*args, **kwargs)
            assert self._plan is not None
            assert self._store is not None
            output = self._replays.run(
                call.key, module, original, args, kwargs, self._plan, micro_batch=self._micro_batch,
                store=self._store, token=self._in_flight.token, parameters=self._parameters,
            )  # fmt: skip
            self._ledger.left_to_others(call.key, output, self._plan.outputs.get(call.key, ()))
            return output

        outer = around_compiled(module, before, after, forward) if compiled else forward
        undo.append(replace_call(module, outer))

    def _uninstall(self, *failure: Any) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(*failure)
            self._hooks = None
        while self._undo:
            self._undo.pop()()

    # ---- The plan ----

    def _start(self, profile: Profile) -> None:
        if self._backend is None:
            self._backend = make_backend(self._device)
        absent = watch_gradients(self._model)
        self._book = PlanBook(self._backend, profile, self._limits, self._pins, absent)
        self._plan = self._book.first()
        self._limits = self._book.limits
        self._signature = profile.signature
        self._open_engine()

    def _open_engine(self) -> None:
        assert self._plan is not None
        assert self._book is not None
        options = self._engine_options
        engine, self._plan = open_engine(self._book, self._plan, self._signature, options)
        self._leased = self._plan.lease_needs()
        self._store = FrameStore(engine, self._device)

    def _fit_engine(self) -> None:
        """At a quiescent point: leases too small for the plan are exchanged; its limits hold."""
        assert self._plan is not None
        assert self._backend is not None
        assert self._store is not None
        needs = self._plan.lease_needs()
        short = any(size > self._leased.get(device, 0) for device, size in needs.items())
        if short and not self._backend.plans_once:
            self._store.close()
            self._open_engine()
        self._store.engine.set_limits(*self._plan.copy_limits)

    def _answer_revocation(self) -> None:
        """A lease is asked back: everything is returned and planned without lenders."""
        assert self._store is not None
        assert self._book is not None
        lease = self._store.engine.take_revocation()
        if lease is None:
            return
        self._store.close()
        self._book.drop_lenders()
        self._plan = self._book.current(self._signature)
        self._open_engine()
        print(f"HyperFrames: lease {lease} was asked back; nothing is moved now.", file=sys.stderr)

    # ---- Hooks ----

    def _passes(self) -> bool:
        """Nothing is planned here: no gradients, profiling, or inside a backward."""
        return (
            self._suspended
            or not torch.is_grad_enabled()
            or torch._C._current_graph_task_id() != -1
        )

    def _before_root(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        refuse_while_traced("The model")
        if self._passes():
            return
        refuse_graph_capture(self._device)
        refuse_late_sharding((self._root, *self._blocks.values()), self._gathers)
        if self._store is None:
            self._profile_now(args, kwargs)
        assert self._store is not None
        assert self._book is not None
        refuse_moved_model(self._root, self._device)
        self._end_step()
        self._parameters = ParameterStorages(self._root)
        signature = signature_of(args, kwargs)
        quiescent = self._store.quiesce()
        self._micro_batch = 0 if quiescent else self._micro_batch + 1
        in_flight = self._in_flight.begin(self._held_bytes())
        if quiescent:
            self._answer_revocation()
            self._book.apply_lessons(self._signature)
            if in_flight == 1:
                self._book.expect_in_flight(self._in_flight.most)
            self._counts["steps"] += 1
        self._plan = self._book.current(signature)
        if quiescent:
            self._fit_engine()
        self._signature = signature
        self._counts["forwards"] += 1
        self._store.watch_held()
        self._ledger.begin_forward()
        self._ledger.in_root = True

    def _after_root(self, module: nn.Module, args: Any, output: Any) -> None:
        self._ledger.in_root = False
        if output is not None and not self._passes():
            self._in_flight.completed(self._held_bytes())
            self._report(self._counts["steps"] - 1)  # Now most of a step's activations wait.

    def _held_bytes(self) -> int:
        moved = self._store.moved_bytes() if self._store is not None else 0
        return self._meter.current_bytes + moved

    def _profile_now(self, args: Any, kwargs: Any) -> None:
        """Neither profile nor sample was given: the first batch is the sample."""
        self._device = model_device(self._root)  # Trainers move the model after this was entered.
        self._ledger = Ledger(self._device)
        self._suspended = True
        try:
            self._profile = profile(
                self._root,
                as_sample(self._root, args, kwargs),
                loss_fn=self._sample["loss_fn"],
                optimizer=self._sample["optimizer"],
                dtype=self._sample["dtype"],
                blocks=self._block_names,
                allow_checkpointing=self._allow_checkpointing,
            )
        finally:
            self._suspended = False
        self._start(self._profile)

    def _is_on_top(self) -> bool:
        top = top_hooks()
        return top is not None and getattr(top[0], "__self__", None) is self

    def _recomputes(self, key: str) -> bool:
        return self._plan is not None and self._plan.recomputes(key)

    def _see_hooks(self, hooks: Any) -> None:
        if not self._suspended:
            where = self._ledger.current().key
            seen = judge_inner_hooks(hooks, where, self._allow_checkpointing)
            self._counts["checkpoints_seen"] += seen

    def _pack(self, tensor: torch.Tensor) -> Any:
        if type(tensor).__torch_dispatch__ is not _PLAIN:
            refuse_subclass(tensor, self._ledger.current().key)
        if self._gathers and self._in_compiled_block():
            self._parameters.add(cast(nn.Module, self._ledger.current().module))
        reason = stays_reason(tensor, self._device, self._parameters)
        if tensor.layout is not torch.strided or tensor.device != self._device:
            return Kept(tensor)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if not nbytes or storage in self._parameters:
            return Kept(tensor)
        observe_everywhere(storage)
        plan, store = self._plan, self._store
        # PyTorch calls this with gradients off; what a backward saves was never planned.
        if self._suspended or torch._C._current_graph_task_id() != -1 or not plan or not store:
            return Kept(tensor, self._in_flight.token)
        record, is_new = self._ledger.classify(storage)
        decision = plan.lookup(record.block, record.ordinal, nbytes)
        if decision is None or not plan.exact:
            self._learn(tensor, record.block, record.ordinal, record.is_input, nbytes, reason)
        if decision is None:
            if is_new:
                self._counts["unplanned_storages"] += 1
                self._counts["unplanned_bytes"] += nbytes
            return Kept(tensor, self._in_flight.token)
        reader = self._ledger.current().key
        moved = None
        if not reason and decision.tier != KEEP:
            moved = store.move(
                tensor, record, micro_batch=self._micro_batch, tier=decision.tier,
                block_index=plan.index[record.block], lender=decision.device,
                preferred_offset=decision.preferred_offset, reader=reader,
                compiled=self._in_compiled_block(), anytime=record.block == REST,
            )  # fmt: skip
        if moved is None:
            return Kept(tensor, self._in_flight.token, reader)
        moved.token = self._in_flight.token
        return moved

    def _unpack(self, packed: Any) -> torch.Tensor:
        if self._store is not None:
            self._store.note_backward()
            self._store.begin_reading(packed.reader)
        return packed.unpack()  # type: ignore[no-any-return]

    def _in_compiled_block(self) -> bool:
        module = self._ledger.current().module
        return module is not None and is_compiled(module)

    def _learn(
        self,
        tensor: torch.Tensor,
        block: str,
        ordinal: int,
        is_input: bool,
        nbytes: int,
        reason: str,
    ) -> None:
        if self._book is None or self._micro_batch:
            return
        self._book.learn(
            self._signature,
            block,
            StorageInfo(
                ordinal,
                nbytes,
                is_input=is_input,
                unmovable_reason=reason,
                consumers=1,
                **describe_tensor(tensor),
            ),
        )

    def _end_step(self) -> None:
        self._report(self._counts["steps"])

    def _report(self, completed_steps: int) -> None:
        store, plan = self._store, self._plan
        if store is None or plan is None or not self._counts["forwards"]:
            return
        store.engine.report(
            completed_steps,
            self._meter.current_bytes,
            self._meter.peak_bytes,
            sum(self._replays.recompute_ns.values()),
            plan.predicted_peak,
        )
        store.engine.report_micro_batches(0, *self._in_flight.times.totals())

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None before the first forward when no profile was given."""
        return None if self._off else self._plan

    @property
    def meter(self) -> ActivationMeter:
        """Counts this model's activation bytes while the context is entered."""
        return self._meter

    def explain(self) -> str:
        """A table with a line per block: policy, bytes by tier, reason."""
        return "" if self._off or self._plan is None else self._plan.explain()

    def stats(self) -> dict[str, Any]:
        """What was planned and what happened. Bytes, seconds, counts.

        ``peer_bytes``, ``host_bytes`` and ``recomputed_bytes`` are per step as planned and moved;
        ``held_elsewhere_bytes`` were moved and not freed, for other code keeps them; ``leases``
        says who lends, on which node; ``collectives`` what the pre-flight of several ranks found.
        ``selective_*``: blocks run again in part, outputs handed back, and those that were not
        (stale, diverged, unlike_profile). ``rerun_moved_bytes``, per step: made again, then moved.
        """
        if self._off:
            return {"mode": "off"}
        engine = self._last_engine_stats
        if not engine and self._store is not None:
            engine = self._store.engine.stats()
        return summarize(
            self._limits,
            self._plan,
            {**self._counts, **self._replays.counts()},
            activation_peak=self._meter.peak_bytes if self._entered else 0,
            recompute_ns=self._replays.recompute_ns,
            held=dict(self._store.held) if self._store is not None else {},
            engine=engine,
        )
