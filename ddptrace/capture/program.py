"""Hooks into the training program: module calls, backward, optimizers, gradient scalers, data loaders."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddptrace.capture.steps import StepFinder
from ddptrace.capture.surface import Patches, Surface

_now = time.perf_counter_ns


class _Updates(threading.local):
    """Of one thread: each may train a model of its own."""

    def __init__(self) -> None:
        self.running: list[object] = []  # optimizers (or scalers) whose step is running, outermost first
        self.begin = 0


class Program:
    """Tells a `StepFinder` what the training program does. `on_root` is handed each outermost module before it runs,
    `on_backward_begin` and `on_backward_end` are called around each outermost backward, the latter with its ordinal."""

    def __init__(self, steps: StepFinder, surface: Surface) -> None:
        self.on_root: Callable[[torch.nn.Module], None] = lambda root: None
        self.on_backward_begin: list[Callable[[], None]] = []
        self.on_backward_end: list[Callable[[int], None]] = []
        self._steps = steps
        self._surface = surface
        self._updates = _Updates()
        self._handles: list[Any] = []

    def install(self, patches: Patches) -> None:
        patches.replace(torch.nn.Module, "__call__", self._module_call)
        patches.replace(torch.autograd, "backward", self.watched_backward)
        patches.replace(torch.amp.GradScaler, "step", self._scaler_step)
        patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        self._handles = [
            register_optimizer_step_pre_hook(lambda one, args, kwargs: self._surface.call(self._update_begins, one)),
            register_optimizer_step_post_hook(lambda one, args, kwargs: self._surface.call(self._update_ends, one)),
        ]

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        steps, surface = self._steps, self._surface

        def __call__(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if steps.inside or not surface.on:
                return original(module, *args, **kwargs)
            begin = _now()
            try:
                begin = self._enter_forward(module)
                return original(module, *args, **kwargs)
            finally:
                self._leave(steps.forward_ends, begin)

        return __call__

    def watched_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        steps, surface = self._steps, self._surface

        def backward(*args: Any, **kwargs: Any) -> Any:
            if steps.inside or not surface.on:
                return original(*args, **kwargs)
            begin = _now()
            try:
                begin = self._enter_backward()
                return original(*args, **kwargs)
            finally:
                self._leave_backward(begin)

        return backward

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A scaler that finds an overflow skips the optimizer's step, which is an update of its own kind."""

        def step(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._surface.call(self._update_begins, scaler)
            try:
                return original(scaler, *args, **kwargs)
            finally:
                self._surface.call(self._update_ends, scaler)

        return step

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            self._surface.call(self._steps.data_begins)
            begin = _now()
            try:
                return original(iterator)
            finally:
                self._surface.call(self._steps.data, begin)

        return __next__

    def _enter_forward(self, module: torch.nn.Module) -> int:
        self._steps.inside = True
        begin = self._surface.call(self._forward_begins, module)
        return begin if begin is not None else _now()

    def _forward_begins(self, module: torch.nn.Module) -> int:
        self.on_root(module)
        return self._steps.forward_begins()

    def _leave(self, ends: Callable[[int], None], begin: int) -> None:
        self._steps.inside = False
        self._surface.call(ends, begin)

    def _enter_backward(self) -> int:
        self._steps.inside = True
        begin = self._surface.call(self._backward_begins)
        return begin if begin is not None else _now()

    def _backward_begins(self) -> int:
        begin = self._steps.backward_begins()
        for told in self.on_backward_begin:
            told()
        return begin

    def _leave_backward(self, begin: int) -> None:
        backward = self._steps.backwards
        self._leave(self._steps.backward_ends, begin)
        for told in self.on_backward_end:
            self._surface.call(told, backward)

    def _update_begins(self, optimizer: object) -> None:
        """Only the outermost counts, unless an exception has ended it: torch tells of no such end."""
        updates = self._updates
        if updates.running and not _is_stepping(updates.running[0]):
            updates.running.clear()
        if not updates.running:
            updates.begin = _now()
        updates.running.append(optimizer)

    def _update_ends(self, optimizer: object) -> None:
        updates = self._updates
        while updates.running and updates.running.pop() is not optimizer:
            pass
        if not updates.running:
            self._steps.update_ends(updates.begin)


OPTIMIZER_STEP = "Optimizer.profile_hook_step.<locals>.wrapper"  # torch's own frame around every optimizer's step
SCALER_STEP = "Program._scaler_step.<locals>.step"


def _is_stepping(updating: object) -> bool:
    """Whether an optimizer's (or scaler's) step is among the calling thread's frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname == OPTIMIZER_STEP and frame.f_locals.get("self") is updating:
            return True
        if frame.f_code.co_qualname == SCALER_STEP and frame.f_locals.get("scaler") is updating:
            return True
        frame = frame.f_back
    return False
