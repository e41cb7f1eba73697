"""The plans of one session: one per input shape, made from the profile or learned from a step."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from . import _group
from ._blocks import LOSS, REST
from ._config import Limits
from ._engine import Backend
from ._preflight import look_at_collectives
from ._reporting import recommendation
from ._shared import readers_of_shared
from .errors import ResourceExhausted
from .plan import Plan, pin_blocks, rank_problem, read_plan
from .profile import BlockInfo, Profile, Signature, StorageInfo

_MOST_PLANS = 64
_POLICIES = ("recompute", "selective")  # Of the words that can be forbidden; the rest are tiers.
_MOST_LESSONS = 3  # New plans for one shape because a step saved other storages than profiled.
_WATCHED_STEPS = 16
_SLOWDOWN_ALLOWED = 1.05
_FRACTIONS = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2)


class PlanBook:
    """Plans by signature, bounded. Not thread-safe: forwards of one session are sequential."""

    def __init__(
        self,
        backend: Backend,
        profile: Profile,
        limits: Limits,
        pins: Mapping[str, str],
        gradients_absent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backend = backend
        self._gradients_absent = gradients_absent
        self._base = profile
        self.limits = limits
        self._pins = pins
        # By what the forward is given, and whether it begins without gradients.
        self._plans: OrderedDict[tuple[Signature, bool], tuple[Plan, Profile]] = OrderedDict()
        self._lessons: dict[Signature, int] = {}
        self._learned: dict[tuple[str, int], StorageInfo] = {}
        self._newness: deque[bool] = deque(maxlen=_WATCHED_STEPS)
        self._advised = False
        self.no_lenders = False
        self.no_host = False
        self._in_flight = 1
        self._fixed: dict[str, str] = {}  # Policies that all ranks agreed on.
        self._unlimited_step_s = 0.0
        self._recommended = False

    def first(self) -> Plan:
        """The plan for the profile's own shape, made with all ranks of the job."""
        if self.limits.budget is None and self.limits.activation_budget is None:
            self._recommended = True
            self.limits = self._recommend()
        absent = self._absent()
        plan = self._make(self._base, absent, group=True)
        self._fixed = _group.agree_with_group(self._base, plan.policies)
        if any(plan.policies.get(name, policy) != policy for name, policy in self._fixed.items()):
            # Another rank's plan differs: as agreed, and leased.
            plan = self._make(self._base, absent)
        look_at_collectives(self._backend, plan.predicted_activation_peak)
        self._announce(plan)
        self._remember((self._base.signature, absent), plan, self._base)
        return plan

    def current(self, signature: Signature) -> Plan:
        """The plan for a forward with these inputs; a new shape gets a scaled one at once."""
        key = signature, self._absent()
        found = self._plans.get(key)
        other = self._plans.get((signature, not key[1]))
        same = signature == self._base.signature
        self._newness.append(found is None and other is None and not same)
        if found is not None:
            self._plans.move_to_end(key)
            return found[0]
        self._advise()
        if other is not None:
            profile = other[1]
        else:
            profile = self._base if same else self._base.scaled(signature)
        plan = self._replan(profile, key[1])
        self._remember(key, plan, profile)
        return plan

    def _absent(self) -> bool:
        # Of several forwards in flight the later ones' backwards find gradients.
        return self._in_flight == 1 and self._gradients_absent()

    def learn(self, signature: Signature, block: str, storage: StorageInfo) -> None:
        """A forward saved a storage that its plan does not have, or only as an estimate."""
        if self._lessons.get(signature, 0) < _MOST_LESSONS:
            self._learned[block, storage.ordinal] = storage

    def apply_lessons(self, signature: Signature) -> bool:
        """At a quiescent point: a new plan with what the last step taught. True when it changed."""
        learned, self._learned = self._learned, {}
        known = [key for key in ((signature, False), (signature, True)) if key in self._plans]
        if not learned or not known:
            return False
        self._lessons[signature] = self._lessons.get(signature, 0) + 1
        while len(self._lessons) > _MOST_PLANS:
            del self._lessons[next(iter(self._lessons))]
        for key in known:
            profile = _with_storages(self._plans[key][1], learned)
            self._remember(key, self._replan(profile, key[1]), profile)
        return True

    def expect_in_flight(self, forwards: int) -> bool:
        """At a quiescent point: so many forwards wait for their backwards at once. True: more than
        planned for, so every shape is planned anew with a share of the budget for each."""
        if forwards <= self._in_flight:
            return False
        self._in_flight = forwards
        if self.limits.budget is not None or self.limits.activation_budget is not None:
            warnings.warn(
                f"HyperFrames: {forwards} forwards were alive at once; the last step may have gone "
                "over its budget. From now on each is planned with its share of it.",
                stacklevel=2,
            )
        self._plans.clear()
        return True

    def _share(self, limits: Limits) -> Limits:
        if self._in_flight == 1:
            return limits
        activations = limits.activation_budget
        if limits.budget is not None:
            activations = max(0, limits.budget - self._base.resident_bytes)
        if activations is None:
            return limits
        return dataclasses.replace(
            limits, budget=None, activation_budget=activations // self._in_flight
        )

    def _lend_for_all(self, raw: dict[str, Any]) -> None:
        """Leases for every forward in flight, as far as the lenders go."""
        free = {
            str(device["uuid"]): int(device.get("lendable_bytes", 0))
            for device in self._backend.describe().get("devices", ())
        }
        for rank in raw["ranks"]:
            for need in rank.get("leases", ()):
                wanted = int(need["bytes"]) * self._in_flight
                need["bytes"] = max(int(need["bytes"]), min(wanted, free.get(need["device"], 0)))

    @property
    def backend(self) -> Backend:
        return self._backend

    def lend_less_host(self, most: int) -> None:
        """Host memory could not be had: from now on plan with at most ``most`` bytes of it."""
        forbidden = self.limits.forbidden
        self.no_host = most == 0
        if self.no_host and "host" not in forbidden:
            forbidden = (*forbidden, "host")
        self.limits = dataclasses.replace(self.limits, host_budget=most, forbidden=forbidden)
        self._plans.clear()

    def drop_lenders(self) -> None:
        """A lease was asked back: from now on plan without any."""
        self.no_lenders = True
        self._plans.clear()

    def _remember(self, key: tuple[Signature, bool], plan: Plan, profile: Profile) -> None:
        self._plans[key] = (plan, profile)
        self._plans.move_to_end(key)
        while len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)

    def _options(self, group: bool) -> dict[str, Any]:
        forbidden = self.limits.forbidden
        return {
            "forbidden_tiers": [
                f"TIER_{word.upper()}" for word in forbidden if word not in _POLICIES
            ],
            "forbid_recompute": "recompute" in forbidden,
            "forbid_selective": "selective" in forbidden,
            "level_first": self.limits.objective == "level",
            "host_budget": self.limits.host_budget,
            "no_lenders": self.no_lenders,
            "group": group,
        }

    def _make(
        self, profile: Profile, absent: bool, *, group: bool = False, limits: Limits | None = None
    ) -> Plan:
        limits = limits or self._share(self.limits)
        # What several blocks read stays if it can: moved, it comes back for each of them. Ranks
        # that plan together take the same turns, whatever each of them has found.
        together = group and _group.world_size() > 1
        shared = together or bool(readers_of_shared(profile))
        for keep_from in (1, 2) if shared and not self._backend.plans_once else ():
            with contextlib.suppress(ResourceExhausted):
                return self._make_with(profile, absent, group, limits, keep_from)
        return self._make_with(profile, absent, group, limits, 0)

    def _make_with(
        self, profile: Profile, absent: bool, group: bool, limits: Limits, keep_from: int
    ) -> Plan:
        problem = rank_problem(
            profile,
            rank=0,
            gpu=self._backend.gpu,
            budget=limits.budget,
            activation_budget=limits.activation_budget,
            gradients_absent=absent,
            keep_shared_from=keep_from,
            recompute="recompute" not in limits.forbidden,
        )
        problem = _group.bind(problem, self._fixed)
        raw = self._backend.plan(problem, self._options(group))
        raw = _group.unbind(raw, self._fixed)
        if self._in_flight > 1:
            self._lend_for_all(raw)
        return read_plan(pin_blocks(raw, profile, 0, self._pins), profile, 0)

    def _replan(self, profile: Profile, absent: bool) -> Plan:
        try:
            return self._make(profile, absent)
        except ResourceExhausted as error:
            # Training goes on with the thriftiest plan there is; the user is told what would fit.
            warnings.warn(
                f"HyperFrames: inputs {profile.signature} do not fit the budget ({error}); this "
                "shape runs with everything recomputed or moved that can be.",
                stacklevel=2,
            )
            return self._thriftiest(profile, absent)

    def _thriftiest(self, profile: Profile, absent: bool) -> Plan:
        """The tightest of a few relaxed budgets that the planner accepts."""
        total = profile.activation_bytes
        for fraction in (*reversed(_FRACTIONS), 1.0, 2.0):
            limits = dataclasses.replace(
                self.limits, budget=None, activation_budget=int(total * fraction)
            )
            try:
                return self._make(profile, absent, limits=limits)
            except ResourceExhausted:
                continue
        unlimited = dataclasses.replace(self.limits, budget=None, activation_budget=None)
        return self._make(profile, absent, limits=unlimited)

    def _recommend(self) -> Limits:
        """The smallest activation budget of a few whose predicted step is not 5 % slower."""
        if self._backend.plans_once:
            return self.limits  # The coordinator knows what is free and binds by that.
        try:
            free = self._make(self._base, self._absent())
        except ResourceExhausted:
            return self.limits  # first() reports it with the smallest budget that works.
        total = max(free.activation_bytes, free.predicted_activation_peak)
        best: tuple[int, float] | None = None
        for fraction in _FRACTIONS:
            budget = int(total * fraction)
            try:
                plan = self._make(
                    self._base,
                    self._absent(),
                    limits=dataclasses.replace(self.limits, activation_budget=budget),
                )
            except ResourceExhausted:
                break
            if plan.predicted_step_s > free.predicted_step_s * _SLOWDOWN_ALLOWED:
                break
            best = budget, plan.predicted_step_s
        self._unlimited_step_s = free.predicted_step_s
        if best is None:
            return self.limits
        return dataclasses.replace(self.limits, activation_budget=best[0])

    def _announce(self, plan: Plan) -> None:
        """Nobody asked for this budget: what was chosen, and why, before it is used."""
        if self._recommended:
            gpu = "" if not self._backend.plans_once else self._backend.gpu
            text = recommendation(
                plan,
                budget=self.limits.activation_budget,
                unlimited_step_s=self._unlimited_step_s,
                allowed=_SLOWDOWN_ALLOWED,
                bound_by=gpu,
            )
            print(text, flush=True)

    def _advise(self) -> None:
        if (
            not self._advised
            and len(self._newness) == _WATCHED_STEPS
            and sum(self._newness) > _WATCHED_STEPS // 2
        ):
            self._advised = True
            warnings.warn(
                f"HyperFrames: {sum(self._newness)} of the last {_WATCHED_STEPS} forwards had "
                "input shapes never seen before, so their plans are estimates. Pad inputs to a few "
                "lengths, or use activation checkpointing for this data.",
                stacklevel=2,
            )


def _with_storages(profile: Profile, learned: Mapping[tuple[str, int], StorageInfo]) -> Profile:
    blocks = [dataclasses.replace(b, storages=list(b.storages)) for b in profile.blocks]
    by_name = {block.name: block for block in blocks}
    for (name, ordinal), storage in sorted(learned.items()):
        block = by_name.get(name)
        if block is None:
            block = by_name[name] = BlockInfo(name, keep_reason="not in the profile")
            if name == REST:
                blocks.insert(0, block)
            elif name != LOSS and blocks and blocks[-1].name == LOSS:
                blocks.insert(len(blocks) - 1, block)
            else:
                blocks.append(block)
        block.storages = sorted(
            [s for s in block.storages if s.ordinal != ordinal] + [storage],
            key=lambda s: s.ordinal,
        )
    return dataclasses.replace(profile, blocks=blocks, exact=True)
