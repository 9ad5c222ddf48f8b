"""Opens a browser if there is one on this machine, or says how to reach this machine from another."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import webbrowser
from collections.abc import Mapping


def open_browser(address: str) -> bool:
    """Open a browser. Returns whether one opened. Never opens a text browser, which cannot show the UI."""
    return has_browser(os.environ, sys.platform) and webbrowser.open(address)


def has_browser(environment: Mapping[str, str], platform: str) -> bool:
    """Whether to open a browser. BROWSER decides if set: remote editors use it to open one on the user's machine."""
    if environment.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environment:
        return False
    return platform != "linux" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def tunnel(port: int) -> str:
    """Return the command for the machine with the browser. The port is the same there: Perfetto's site needs it."""
    return f"ssh -L {port}:127.0.0.1:{port} {_user()}{socket.gethostname()}"


def _user() -> str:
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a container without user names
        return ""
