"""Calls a function as soon as the program has imported a package.

Importing torch ahead of the program would change it: environment variables that it sets before its own import, such as
thread counts, would come too late.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action` once, when the module `name` has been imported; at once if it already is."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


class _Watch(MetaPathFinder):
    """Lets the other finders find the package, hooks into their loader for one import, and removes itself."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Loader) -> None:
        """Wrap the loader of this one import. Its class, and so the package's later loaders, stay as they are."""
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del vars(loader)["exec_module"]
            original(module)
            self._imported()

        vars(loader)["exec_module"] = exec_module

    def _imported(self) -> None:
        if self in sys.meta_path:  # another thread may have been faster
            sys.meta_path.remove(self)
            self._action()
