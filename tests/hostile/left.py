"""What a program leaves behind: attributes of torch and Python that are not what they were, and the process's state.

A program may change things itself, and importing on demand changes many. So this is no verdict: what is left after a
traced run is compared with what is left after a plain one.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import faulthandler
import gc
import hashlib
import locale
import os
import pickle
import random
import re
import resource
import signal
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optim
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tests.hostile.kept import kept_modules

WATCHED: Final = (
    "asyncio",
    "builtins",
    "copy",
    "copyreg",
    "gc",
    "io",
    "multiprocessing",
    "numpy",
    "os",
    "pickle",
    "random",
    "signal",
    "subprocess",
    "sys",
    "threading",
    "time",
    "torch",
    "traceback",
    "types",
    "warnings",
    "weakref",
    "accelerate",
    "lightning",
    "transformers",
)
"""Packages whose attributes are compared, and those of their classes."""

FEEDER: Final = "QueueFeederThread"
FEEDER_S: Final = 5
"""A queue of multiprocessing starts it when it first sends, and it ends some time after the queue: within this time."""
VOLATILE: Final = {
    ("sys", "last_exc"),
    ("sys", "last_traceback"),
    ("sys", "last_type"),
    ("sys", "last_value"),
    ("builtins", "_"),
    ("warnings", "_filters_version"),
    ("torch.utils.hooks.RemovableHandle", "next_id"),
    ("torch.autograd.profiler", "_cupti_monitor_checked"),
    ("torch.autograd.profiler", "_cupti_monitor_module"),
}
"""What Python and torch count or leave on their own, without a meaning for the program."""

NAMED_ANEW: Final = (
    "__warningregistry__",
    "__compiled_fn_",
    "___unnamed_scope_",
    "__resume_at_",
    "__optimizer_",
    "__import_ddptrace",
)
"""How such names begin; Dynamo's, which it puts beside the functions that it compiles, go on with other numbers each
time."""

VERSION_OFFSET: Final = {(3, 11): 24, (3, 12): 24}.get(sys.version_info[:2])
"""Where CPython counts the changes of a dictionary. Later versions have no such count."""

_environ: Final = dict[str, str]()
_before: dict[str, tuple[ModuleType | type, dict[str, object]]] = {}
_names = list[str]()
_addresses = array.array("Q")
_versions = array.array("Q")


def remember() -> None:
    """Take the attributes as they are now for those that must be there again."""
    _before.clear()
    _before.update(_owners())
    _names[:] = _before
    _addresses[:] = array.array("Q", (id(_dictionary(owner)) for owner, _ in _before.values()))
    _versions[:] = array.array("Q", map(_version, _addresses))


def _dictionary(owner: ModuleType | type) -> dict[str, object]:
    """Return the dictionary itself: `vars` wraps that of a class."""
    found = vars(owner)
    return found if isinstance(found, dict) else gc.get_referents(found)[0]  # type: ignore[no-any-return]


def _version(address: int) -> int:
    return ctypes.c_uint64.from_address(address + VERSION_OFFSET).value if VERSION_OFFSET else 0


def _suspects() -> list[str]:
    """Return the names of owners whose dictionary has changed, or of all.

    A look at an attribute writes its reference count. In a forked process that copies its memory page, which takes four
    times as long as the comparison.
    """
    if not VERSION_OFFSET:
        return _names
    now = array.array("Q", map(_version, _addresses))
    return [_names[n] for n, (one, other) in enumerate(zip(now, _versions, strict=True)) if one != other]


def _owners() -> Iterator[tuple[str, tuple[ModuleType | type, dict[str, object]]]]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in WATCHED and isinstance(module, ModuleType):
            yield name, (module, dict(vars(module)))
            for key, value in list(vars(module).items()):
                if issubclass(type(value), type) and value.__module__ == name:  # isinstance runs code of some values
                    yield f"{name}.{key}", (value, dict(vars(value)))


def changed() -> list[str]:
    """Names of the attributes that are not the very objects that they were."""
    found = []
    for name in _suspects():
        owner, before = _before[name]
        now = vars(owner)
        for key in now.keys() | before.keys():
            is_same = now.get(key, found) is before.get(key, found)
            if not is_same and (name, key) not in VOLATILE and not key.startswith(NAMED_ANEW):
                found.append(f"{name}.{key}")
    return sorted(found)


def begin() -> None:
    """Call at the start of a rank: what it is given is not the same in every run."""
    _environ.update(os.environ)
    random.seed(1)
    np.random.seed(1)


def left() -> dict[str, Any]:
    """What there is to compare, by what it is."""
    return {"attributes": changed()} | {name: str(ask()) for name, ask in STATE.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]


def _handlers() -> dict[str, str]:
    """Of every signal that may have one."""
    return {
        one.name: _named(signal.getsignal(one)) for one in signal.valid_signals() if isinstance(one, signal.Signals)
    }


def _kind(finder: object) -> str:
    """Name the class of a finder: an instance may show its address."""
    return (finder if isinstance(finder, type) else type(finder)).__name__


def _named(value: Any) -> str:
    return getattr(value, "__qualname__", None) or str(value)


def _open_files() -> list[str]:
    """With a path: sockets and the like are made by many, at any time."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this very look
            found.append(str(file.readlink()))
    return sorted(one for one in found if one.startswith("/") and not one.startswith(("/dev", "/proc")))


def _hooks_of_modules() -> list[str]:
    """On the modules and parameters that the program has kept."""
    found = []
    for number, module in enumerate(kept_modules()):
        for name, one in module.named_modules():
            found += [f"{number} {name}.{key}" for key, value in vars(one).items() if "_hooks" in key and value]
        for name, parameter in module.named_parameters():
            for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                value = getattr(parameter, key)
                found += [f"{number} {name}.{key} {len(value)}"] if value else []
    return found


def _has_wakeup_fd() -> bool | None:
    if threading.current_thread() is not threading.main_thread():
        return None
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number)
    return number >= 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _groups() -> list[str]:
    return sorted(f"{group.group_name} {group.size()}" for group in c10d._world.pg_map)


def _threads() -> list[str]:
    for thread in threading.enumerate():
        if thread.name == FEEDER and thread is not threading.current_thread():
            thread.join(FEEDER_S)
    return sorted(thread.name for thread in threading.enumerate())


def _loop() -> bool:
    return asyncio._get_running_loop() is not None


STATE: Final[dict[str, Callable[[], object]]] = {
    "threads": _threads,
    "files": _open_files,
    "hooks of modules": _hooks_of_modules,
    "hooks of all modules": lambda: [
        len(getattr(hooks, name))
        for name in sorted(vars(hooks))
        if name.startswith("_global_") and "hooks" in name and hasattr(getattr(hooks, name), "__len__")
    ],
    "hooks of optimizers": lambda: [len(optim._global_optimizer_pre_hooks), len(optim._global_optimizer_post_hooks)],
    "signal handlers": _handlers,
    "signal mask": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "signal wakeup": _has_wakeup_fd,
    "timer": lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    "sys hooks": lambda: [_named(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
    "sys path": lambda: [*sys.path, *map(_kind, sys.meta_path), *map(_named, sys.path_hooks)],
    "tracers": lambda: [_named(one) for one in (sys.gettrace(), sys.getprofile(), threading.gettrace())],
    "limits": lambda: [sys.getrecursionlimit(), sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)],
    "garbage": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), len(gc.garbage)],
    "warnings": lambda: [_digest([str(one) for one in warnings.filters]), _named(warnings.showwarning)],
    "at exit": lambda: atexit._ncallbacks(),  # type: ignore[attr-defined]
    "environment": lambda: sorted(_environ.items() ^ os.environ.items()),
    "working directory": lambda: _working_directory(),
    "umask": _umask,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "context": lambda: sorted({re.sub(r"\[\d+\]", "", variable.name) for variable in contextvars.copy_context()}),
    "running loop": _loop,
    "memory tracing": lambda: [tracemalloc.is_tracing(), faulthandler.is_enabled()],
    "random numbers": lambda: [
        _digest(torch.get_rng_state().numpy().tobytes()),
        _digest(random.getstate()),
        _digest(np.random.get_state()),
    ],
    "defaults of torch": lambda: [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch.autograd._profiler_enabled(),
        torch.autograd.profiler._is_profiler_enabled,
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
    ],
    "modes of torch": lambda: [len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())],
    "groups": lambda: _groups() if dist.is_initialized() else [],
}


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "gone"
