"""A session whose requests end in time: the library's own timeout begins anew with each byte that drips in."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, PoolManager


class BoundedSession(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._cut = False
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._sockets))

    @contextlib.contextmanager
    def within(self, allowed_s: float) -> Iterator[None]:
        """Around a request and the reading of its answer. Raises requests.Timeout where they were not done by then."""
        self._cut = False
        timer = threading.Timer(allowed_s, self._cut_off)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (requests.RequestException, OSError):
            if not self._cut:
                raise
        finally:
            timer.cancel()
        if self._cut:
            raise requests.Timeout

    def _cut_off(self) -> None:
        self._cut = True
        for one in list(self._sockets):
            with contextlib.suppress(OSError):  # it has ended by itself
                one.shutdown(socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    """Notes the socket of each connection: one that is to be closed after its answer forgets it before the answer is
    read."""

    def __init__(self, sockets: WeakSet[socket.socket]) -> None:
        self._sockets = sockets
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        self._watch(manager)
        return manager

    def _watch(self, manager: PoolManager) -> None:
        manager.pool_classes_by_scheme = {
            scheme: _noting(pool, self._sockets) for scheme, pool in manager.pool_classes_by_scheme.items()
        }


def _noting(pool: type[HTTPConnectionPool], sockets: WeakSet[socket.socket]) -> type[HTTPConnectionPool]:
    class Noted(pool.ConnectionCls):  # type: ignore[name-defined, misc]
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    return type(pool.__name__, (pool,), {"ConnectionCls": Noted})
