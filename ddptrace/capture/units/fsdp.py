"""FSDP2 (`fully_shard`): each of its parameter groups is a unit.

    pre_forward      ├ unshard: all-gather ┤┄ wait ┄┤        a use: until the parameters are there
    post_forward     reshard                                 freed
    pre_backward     ├ unshard ┤┄ wait ┄┤ unshard of the next unit: a prefetch, in this unit's use
    post_backward    ready ├ reshard, reduce-scatter, all-reduce ┤

Only this file uses the private names of `fully_shard`. If one of them has moved, its units are not recorded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.capture.by_identity import IdentityMap
from ddptrace.capture.collectives.groups import Groups, name_of
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.surface import Patches, Surface, ThreadState, unseen
from ddptrace.capture.units.unit_records import BACKWARD, FORWARD, DescribedGroup, Part, UnitRecords
from ddptrace.schema import UnitMark, UnitRole

_now = time.perf_counter_ns

FULLY_SHARD: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
"""The module of torch that has the class of parameter groups. A program that never shards does not import it."""

PHASES: Final = {"FORWARD": FORWARD, "PRE_BACKWARD": BACKWARD, "POST_BACKWARD": BACKWARD}
"""By name of torch's TrainingState."""

USE, READY, FREED = int(UnitMark.USE), int(UnitMark.READY), int(UnitMark.FREED)


@dataclass(slots=True)
class Watched:
    """One parameter group."""

    unit: int
    parts: dict[int, Part]  # by phase, 0: the program gathers its parameters by itself
    use: tuple[int, int] | None = None  # begin and phase of a use whose parameters are not there yet


class FsdpWatch:
    """Watches the parameter groups of `fully_shard` through the methods of their class."""

    def __init__(
        self, records: UnitRecords, surface: Surface, thread: ThreadState, groups: Groups, names: ModuleNames
    ) -> None:
        self._records = records
        self._surface = surface
        self._thread = thread
        self._groups = groups
        self._names = names
        self._watched: IdentityMap[Any, Watched] = IdentityMap()
        self._meeting = threading.RLock()
        self._is_installed = False

    def install(self, patches: Patches) -> None:
        """Watch the class, if the program has imported it. Raises AttributeError or KeyError if a name has moved."""
        module = sys.modules.get(FULLY_SHARD)
        if module is None or self._is_installed:
            return
        self._is_installed = True
        for name, enter, leave in (
            ("pre_forward", self._forward_begins, None),
            ("pre_backward", self._backward_begins, None),
            ("unshard", self._unshards, self._unsharded),
            ("wait_for_unshard", self._waits, self._waited),
            ("post_backward", self._reduces, self._reduced),
            ("reshard", self._frees, self._freed),
        ):
            patches.replace(module.FSDPParamGroup, name, self._around(enter, leave))

    def _around(
        self, enter: Callable[[Any], Any], leave: Callable[[Any, Any], None] | None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a method that runs `enter(group)` before the original, and `leave(group, what that returned)` after it;
        not if that is None. Neither reads a tensor, so no code of the program sees them."""
        surface = self._surface

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(group: Any, /, *args: Any, **kwargs: Any) -> Any:
                token = None
                if surface.live:
                    try:
                        token = enter(group)
                    except Exception as error:  # training must not see it
                        surface.failed(error)
                if token is None or leave is None:
                    return original(group, *args, **kwargs)
                try:
                    return original(group, *args, **kwargs)
                finally:
                    try:
                        leave(group, token)
                    except Exception as error:  # training must not see it
                        surface.failed(error)

            return method

        return make

    # What happens to a group -----------------------------------------------------------------------------------------

    def _forward_begins(self, group: Any) -> None:
        """A group of several modules comes here with each of them: the first one counts."""
        if group._training_state._name_ != "FORWARD":
            self._of(group).use = _now(), FORWARD

    def _backward_begins(self, group: Any) -> None:
        """A group with several outputs comes here with each of them."""
        if group._training_state._name_ != "PRE_BACKWARD":
            self._of(group).use = _now(), BACKWARD

    def _unshards(self, group: Any) -> tuple[Part | None]:
        watched, before = self._of(group), self._thread.unit
        self._thread.unit = watched.parts[_phase(group)]
        return (before,)

    def _unsharded(self, group: Any, before: tuple[Part | None]) -> None:
        (self._thread.unit,) = before

    def _waits(self, group: Any) -> tuple[int, int, int] | None:
        """Return unit, begin and phase of the use; None if nobody has to wait for anything, and no use has begun."""
        watched = self._of(group)
        use, watched.use = watched.use, None
        if (
            use is None and group._all_gather_result is not None
        ):  # a forward that is computed again, or the program's own
            use = _now(), _phase(group)
        return None if use is None else (watched.unit, *use)

    def _waited(self, group: Any, use: tuple[int, int, int]) -> None:
        unit, begin, phase = use
        self._records.mark(unit, USE, begin, _now(), phase=phase)

    def _reduces(self, group: Any) -> tuple[int, int, Part | None]:
        begin, watched, before = _now(), self._of(group), self._thread.unit
        self._thread.unit = watched.parts[BACKWARD]
        return watched.unit, begin, before

    def _reduced(self, group: Any, token: tuple[int, int, Part | None]) -> None:
        unit, begin, self._thread.unit = token
        self._records.mark(unit, READY, begin, _now(), phase=BACKWARD)

    def _frees(self, group: Any) -> int | None:
        """Return its unit; None if there is nothing to free."""
        return self._of(group).unit if group.is_unsharded else None

    def _freed(self, group: Any, unit: int) -> None:
        if not group.is_unsharded:
            at = _now()
            self._records.mark(unit, FREED, at, at, phase=_phase(group))

    # Meeting a group -------------------------------------------------------------------------------------------------

    def _of(self, group: Any) -> Watched:
        return self._watched.get(group) or self._meet(group)

    def _meet(self, group: Any) -> Watched:
        with self._meeting, unseen():
            known = self._watched.get(group)
            if known is None:
                known = self._watched[group] = self._watch(group)
        return known

    def _watch(self, group: Any) -> Watched:
        number = self._records.unit(
            "fsdp",
            ", ".join(self._names.name(module) for module in group.modules),
            list(self._groups_of(group.mesh_info)),
            [_described(parameter) for parameter in group.fsdp_params],
            reshards=group.post_forward_mesh_info is not None,
            root=group._module_fqn == "",
        )
        return Watched(number, {phase: self._records.part(number, phase) for phase in (0, FORWARD, BACKWARD)})

    def _groups_of(self, mesh: Any) -> Iterator[DescribedGroup]:
        """Yield the groups of its shards and of its replicas, as far as the mesh has these."""
        names = mesh.mesh.mesh_dim_names
        for kind, role in (("shard", UnitRole.OTHER), ("replicate", UnitRole.ALL_REDUCE)):
            group, dimension = getattr(mesh, f"{kind}_process_group", None), getattr(mesh, f"{kind}_mesh_dim", None)
            if group is not None and dimension is not None:
                yield DescribedGroup(self._groups.name(name_of(group)), names[dimension] if names else "", role)


def _phase(group: Any) -> int:
    """Return the phase of what a group does; 0 where the program does it by itself."""
    return PHASES.get(group._training_state._name_, 0)


def _described(parameter: Any) -> dict[str, Any]:
    """Describe a parameter of a group. Its size is that of what the group gathers: under tensor parallelism, a part."""
    itemsize = parameter.orig_dtype.itemsize
    return {
        "name": getattr(parameter, "_param_fqn", None) or parameter._module_info.param_name,
        "dtype": str(parameter.orig_dtype).removeprefix("torch."),
        "nbytes": parameter._orig_size.numel() * itemsize,
        "sharded_nbytes": parameter.sharded_size.numel() * itemsize,
    }
