"""Calls a function for each rank: in this process, in several, or on a Dask cluster, with the same results.

Results come in the order of the items, and only a few items are in progress at a time. So memory grows with the number
of workers, not with the number of ranks.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ddptrace.errors import DdptraceError

if TYPE_CHECKING:
    from distributed import Client, Future

Item = TypeVar("Item")
Answer = TypeVar("Answer")

SAFE_PATH: Final = "PYTHONSAFEPATH"
IDLE_WORKER_S: Final = 10
CONNECT_S: Final = 20
RETRIES: Final = 3
"""How often a task goes to another Dask worker after its worker was lost."""


def run_each(
    function: Callable[[Item], Answer], items: Sequence[Item], *, jobs: int = 1, scheduler: str | None = None
) -> Iterator[Answer]:
    """Call `function` for each item. Yields the results in order.

    `jobs`: number of processes on this machine; `scheduler`: address of a Dask scheduler, whose workers see the same
    files under the same paths.

    Raises DdptraceError if a worker was killed or the cluster cannot be reached, and what `function` raises.
    """
    if scheduler is not None:
        return _on_cluster(function, items, scheduler)
    if min(jobs, len(items)) > 1:
        return _in_processes(function, items, min(jobs, len(items)))
    return map(function, items)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(function: Callable[[Item], Answer], items: Sequence[Item], jobs: int) -> Iterator[Answer]:
    """joblib's processes do not run the caller's script again, as the standard library's would."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        with _ignoring_current_folder(), parallel_config("loky", n_jobs=jobs, idle_worker_timeout=IDLE_WORKER_S):
            work = Parallel(return_as="generator", batch_size=1, pre_dispatch=2 * jobs, max_nbytes=None)
            yield from work(delayed(function)(item) for item in items)
    except TerminatedWorkerError as error:
        message = "a worker process was killed, most likely because memory ran out; use fewer processes with --jobs"
        raise DdptraceError(message) from error


@contextmanager
def _ignoring_current_folder() -> Iterator[None]:
    """Keep the current directory off the module path of Python processes that start meanwhile. joblib starts its
    workers with `-m` and `-c`, which put it first: a `json.py` beside somebody's traces would run."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH) if before is None else os.environ.update({SAFE_PATH: before})


def _on_cluster(function: Callable[[Item], Answer], items: Sequence[Item], scheduler: str) -> Iterator[Answer]:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise DdptraceError("the Dask engine needs distributed: pip install 'ddptrace[dask]'") from None
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        message = f"no Dask scheduler answers at {scheduler} ({error}); give the address that it prints when it starts"
        raise DdptraceError(message) from error
    with client:
        yield from _in_order(client, function, items, scheduler)


def _in_order(client: Client, function: Callable[[Item], Answer], items: Sequence[Item], at: str) -> Iterator[Answer]:
    """Keep twice as many tasks in progress as the cluster has threads: no thread idles, and few results wait."""
    lookahead = 2 * max(1, sum(client.nthreads().values()))
    ahead = iter(items)
    under_way = deque(_submit(client, function, item) for item in itertools.islice(ahead, lookahead))
    while under_way:
        yield _answer(under_way.popleft(), at)
        under_way.extend(_submit(client, function, item) for item in itertools.islice(ahead, 1))


def _submit(client: Client, function: Callable[[Item], Any], item: Item) -> Future[Any]:
    return client.submit(function, item, pure=False, retries=RETRIES)


def _answer(future: Future[Any], at: str) -> Any:
    """Return a task's result. An error on another machine becomes one sentence."""
    try:
        return future.result()
    except DdptraceError:
        raise
    except Exception as error:
        kind = type(error).__name__
        message = f"the Dask cluster at {at} failed at a rank ({kind}: {error}); see the logs of its workers"
        raise DdptraceError(message) from error
    finally:
        future.release()
