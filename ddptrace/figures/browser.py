"""A process in which kaleido has a browser draw figures: `python browser.py FILE`, where FILE lists them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NONE_FOUND = "drawing needs Chrome or Chromium, and none was found: install one, or set BROWSER_PATH to it"


def draw(wanted: list[dict[str, Any]]) -> str | None:
    """Draw figures. Returns why it could not, or None.

    Calls kaleido directly, since plotly would have it load MathJax from the network.
    """
    import kaleido
    import kaleido.errors

    try:
        kaleido.write_fig_from_object_sync(wanted, cancel_on_error=True, kopts={"mathjax": False})
    except kaleido.errors.ChromeNotFoundError:
        return NONE_FOUND
    except (RuntimeError, TimeoutError, OSError, kaleido.errors.KaleidoError) as error:
        why = getattr(error, "strerror", None) or next(iter(error.args), "it did not answer in time")
        return f"the browser could not draw the figures: {why}"
    return None


if __name__ == "__main__":
    figures = json.loads(Path(sys.argv[1]).read_text())
    if why := draw([one | {"fig": json.loads(one["fig"])} for one in figures]):
        print(why)
        sys.exit(1)
