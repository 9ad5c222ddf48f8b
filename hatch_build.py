"""Compiles the scanner of Kineto files for a wheel, or in the checkout of an editable installation.

Without a C compiler the wheel has only Python, and reads the same, slower. The library knows nothing of Python's own
interface, so that one wheel serves all versions.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("ddptrace", "load", "kineto")


class CompiledScanner(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        failure = _scan_library(Path(self.root)).compile_scanner()
        if failure is not None:
            self.app.display_warning(f"Kineto files will be read by Python alone, which takes longer: {failure}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(f"/{FOLDER.as_posix()}/scan.so")


def _scan_library(root: Path) -> Any:
    """The module that compiles, by its path: the package itself is not installed yet."""
    found = importlib.util.spec_from_file_location("scan_library", root / FOLDER / "scan_library.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
