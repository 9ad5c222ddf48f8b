"""Whether there is a browser in front of the user, and what to do where it is on another machine."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import webbrowser
from collections.abc import Mapping


def open_browser(address: str) -> bool:
    """Whether one was opened; never one for terminals, which would take this one and cannot show the UI."""
    return has_browser(os.environ, sys.platform) and webbrowser.open(address)


def has_browser(environment: Mapping[str, str], platform: str) -> bool:
    """Whoever sets BROWSER means it: editors that reach here from another machine lead it to the browser there."""
    if environment.get("BROWSER"):
        return True
    if "SSH_CONNECTION" in environment:
        return False
    return platform != "linux" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def tunnel(port: int) -> str:
    """What to type on the machine where the browser is. The port there is the same: Perfetto's site needs it."""
    return f"ssh -L {port}:127.0.0.1:{port} {_user()}{socket.gethostname()}"


def _user() -> str:
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a container in which nobody has a name
        return ""
