"""What the Perfetto UI does by itself when a trace is opened, and the queries as commands of its palette: the same
tracks and queries that `ddptrace view` has ready.

Only commands that Perfetto promises to keep:
https://perfetto.dev/docs/visualization/commands-automation-reference
"""

from __future__ import annotations

from typing import Final

from ddptrace.view.site import SLICES, Head, queries

TITLES: Final = {
    "slowest_steps": "slowest steps",
    "exposed_by_bucket": "exposed time by bucket",
    "host_waits": "what the hosts waited for",
    "peer_waits": "who waited for whom",
    "late_ranks": "late ranks",
    "critical_path": "critical path by rank",
    "largest_gaps": "largest gaps in compute",
}
MOSTLY_EXPOSED: Final = (
    "slice.category = 'bucket.exec' and 2 * extract_arg(slice.arg_set_id, 'args.exposed_ns') >"
    " extract_arg(slice.arg_set_id, 'args.comm_ns')"
)

Command = dict[str, object]


def startup() -> list[Command]:
    """For Settings > Startup commands. They serve every trace, so they pin what every recorded run has."""
    every = Head({"path", "step", "compute", "bucket.exec"}, "")
    tracks: list[Command] = [
        {"id": "dev.perfetto.AddDebugSliceTrack", "args": [_where(which), title]}
        for title, which in every.pinned().items()
    ]
    fold: Command = {"id": "dev.perfetto.CollapseTracksByRegex", "args": [".*"]}
    return [fold, *tracks, {"id": "dev.perfetto.RunQueryAndShowTab", "args": [queries()[every.first_query()]]}]


def macros() -> list[Command]:
    """For Settings > Macros: type `>ddptrace` into the search field."""
    tracks = {
        "ShowExposed": ("show buckets that are mostly exposed, by rank", MOSTLY_EXPOSED, "mostly exposed"),
        "ShowPeerWaits": ("show waits for late ranks, by rank", "slice.category = 'peer.wait'", "waits for late ranks"),
    }
    drawn = [
        _macro(name, title, {"id": "dev.perfetto.AddDebugSliceTrackWithPivot", "args": [_where(which), "rank", track]})
        for name, (title, which, track) in tracks.items()
    ]
    asked = [
        _macro(_camel(name), title, {"id": "dev.perfetto.RunQueryAndShowTab", "args": [queries()[name]]})
        for name, title in TITLES.items()
    ]
    return asked + drawn


def _where(which: str) -> str:
    return f"{SLICES} where {which}"


def _macro(name: str, title: str, command: Command) -> Command:
    return {"id": f"user.ddptrace.{name}", "name": f"ddptrace: {title}", "run": [command]}


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
