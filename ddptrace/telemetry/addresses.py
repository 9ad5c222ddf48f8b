"""Addresses of collectors, as people write them: whether one can be used, and how it may be shown."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ddptrace.errors import printable

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
SCHEMES: Final = ("http", "https")
NAMES_OF_GRPC: Final = ("dns:", "unix:", "unix-abstract:", "ipv4:", "ipv6:", "vsock:", "xds:")
"""What gRPC resolves by itself."""


def is_address(url: str, protocol: str) -> bool:
    """Whether it can be one; of gRPC also without a scheme, as in collector:4317."""
    if protocol == GRPC and url.startswith(NAMES_OF_GRPC):
        return True
    is_bare = protocol == GRPC and "://" not in url
    try:
        parts = urlsplit(f"//{url}" if is_bare else url)
        is_known = is_bare or parts.scheme in SCHEMES
        return is_known and bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:  # a port that is none, an unclosed bracket
        return False


def shown(url: str) -> str:
    """Without what may be a secret: a user's name and password, and what follows a question mark."""
    without_user = re.sub(r"^([a-zA-Z][\w+.-]*://|//)?.*@", r"\1***@", url)
    return printable(re.sub(r"[?#].*", "?***", without_user))
