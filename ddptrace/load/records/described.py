"""What a rank described in JSON: its process groups, reducers and bucket layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ddptrace.load.tables import MOST_RANKS, Group, Layout, Parameter, Reducer

T = TypeVar("T")
Content = dict[str, Any]
MOST_THREADS = 1024  # of one group's backend; a record that says more is damaged


def groups(described: Iterable[Content]) -> tuple[Group, ...]:
    return tuple(each(described, _group))


def sizes(described: Iterable[Content]) -> dict[str, int]:
    """Return the sizes, by name, of groups whose ranks are not known."""
    contents = [content for content in described if not content.get("ranks")]
    return dict(each(contents, lambda content: (str(content["name"]), int(content["size"]))))


def reducers(described: Iterable[Content], layouts: Iterable[Content]) -> tuple[Reducer, ...]:
    """Return the reducers with their layouts in the order of use."""
    of: dict[int, list[Layout]] = defaultdict(list)
    for number, layout in each(layouts, lambda content: (int(content["reducer"]), _layout(content))):
        of[number].append(layout)
    return tuple(each(described, lambda content: _reducer(content, of)))


def each(contents: Iterable[Content], make: Callable[[Content], T]) -> list[T]:
    """Build one object of each description, and skip those without the required fields (damaged or changed by
    others)."""
    made: list[T] = []
    for content in contents:
        try:
            made.append(make(content))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return made


def _group(content: Content) -> Group:
    threads, ranks = content.get("threads"), tuple(int(rank) for rank in content["ranks"])
    if not all(0 <= rank < MOST_RANKS for rank in ranks):
        raise ValueError
    return Group(
        str(content["name"]),
        ranks,
        str(content["backend"]),
        min(int(threads), MOST_THREADS) if isinstance(threads, int) and threads > 0 else None,
        str(content.get("description", "")),
    )


def _layout(content: Content) -> Layout:
    buckets = tuple(tuple(int(i) for i in bucket) for bucket in content["buckets"])
    return Layout(int(content["layout"]), int(content["from_backward"]), buckets)


def _reducer(content: Content, layouts: Mapping[int, list[Layout]]) -> Reducer:
    number, cap = int(content["reducer"]), content.get("bucket_cap_nbytes")
    parameters = tuple(
        Parameter(str(p["name"]), int(p["numel"]), int(p["nbytes"]), str(p["dtype"])) for p in content["parameters"]
    )
    inside = tuple(
        layout
        for layout in sorted(layouts.get(number, []), key=lambda layout: layout.from_backward)
        if all(0 <= i < len(parameters) for bucket in layout.buckets for i in bucket)
    )
    return Reducer(
        number,
        str(content["kind"]),
        str(content["module"]),
        str(content["group"]),
        None if cap is None else int(cap),
        parameters,
        inside,
    )
