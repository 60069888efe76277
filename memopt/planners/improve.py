"""Local search on a schedule that fits its budget: each step keeps it so, and saves time.

take_back   keep what need not be dropped, end drops early
regrow      keep some drops that end one after the other, and fit anew; take back
exchange    keep one drop, dearest first, and fit anew without it
insert      drop one more, and keep others for it
"""

from __future__ import annotations

from collections.abc import Iterable

from memopt.planners.search import Search

_GROUPS = (6, 12)
#: Of the time that keeping a group saves, what fitting anew may take beyond it, before take-back.
_SLACK = 0.3
_KEPT_FOR_ONE = 4
_LEAST_GAIN = 1e-4


def improve(search: Search, budget_bytes: int, effort: int) -> int:
    """All of them, again and again, until none helps or about `effort` changes have been tried.

    Returns:
        How many have been.
    """
    first_change = search.num_changes
    search.limit_effort(effort)
    time_us = float("inf")
    while search.recompute_us < time_us * (1 - _LEAST_GAIN) and not search.is_exhausted:
        time_us = search.recompute_us
        for size in _GROUPS:
            regrow(search, budget_bytes, size)
        exchange(search, budget_bytes)
        insert(search, budget_bytes)
        take_back(search, budget_bytes)
    return search.num_changes - first_change


def take_back(
    search: Search, budget_bytes: int, which: Iterable[int] | None = None, repeat: bool = True
) -> None:
    """Keep what need not be dropped, dearest first, and what chains make on their way.

    Args:
        which: numbers of the gaps to look at; all if None.
        repeat: until nothing changes.
    """
    numbers = search.dropped() if which is None else sorted(which)
    for _, number in _by_saving(search, numbers):
        _keep_if_it_pays(search, number, budget_bytes)
    by_end = sorted(numbers, key=lambda number: search.gaps[number].end)
    improved = True
    while improved:
        improved = False
        for number in by_end:
            drop = search.drop(number)
            if drop is not None:
                improved |= any(
                    _end_if_it_pays(search, number, moment, budget_bytes)
                    for moment in search.state.early_ends(drop)
                )
        improved &= repeat


def regrow(search: Search, budget_bytes: int, size: int) -> None:
    """Keep each `size` drops that end one after the other, and fit anew, where that saves time."""
    by_end = sorted(search.dropped(), key=lambda number: search.gaps[number].end)
    for first in range(0, len(by_end), max(size // 2, 1)):
        if search.is_exhausted:
            return
        before = tuple(search.ends)
        group = by_end[first : first + size]
        time_us, mark = search.recompute_us, search.mark()
        for number in group:
            search.set_end(number, None)
        limit_us = time_us + _SLACK * (time_us - search.recompute_us)
        if search.fit(budget_bytes, limit_us=limit_us):
            changed = [n for n, end in enumerate(search.ends) if end != before[n]]
            take_back(search, budget_bytes, changed, repeat=False)
            if search.recompute_us < time_us:
                continue
        search.return_to(mark)


def exchange(search: Search, budget_bytes: int) -> None:
    """Keep a drop, dearest first, and drop others instead, where that takes less time."""
    for _, number in _by_saving(search, search.dropped()):
        if search.is_exhausted:
            return
        if search.ends[number] is None:
            continue
        time_us, mark = search.recompute_us, search.mark()
        kept = search.set_end(number, None)
        if not kept or not search.fit(budget_bytes, limit_us=time_us, spare=[number]):
            search.return_to(mark)


def insert(search: Search, budget_bytes: int) -> None:
    """Drop one more gap, and keep others for it, dearest first, where that takes less time."""
    saved = _by_saving(search, search.dropped())
    most_us = sum(us for us, _ in saved[:_KEPT_FOR_ONE])
    prices_us = search.prices_us(most_us)
    for number in prices_us.argsort(kind="stable").tolist():
        if prices_us[number] >= most_us or search.is_exhausted:
            return
        if search.ends[number] is not None:
            continue
        whole = search.gaps[number]
        time_us, mark = search.recompute_us, search.mark()
        if not search.set_end(number, whole.end):
            continue
        for _, other in saved:
            drop = search.drop(other)
            if drop is not None and drop.start < whole.end and whole.start < drop.end:
                _keep_if_it_pays(search, other, budget_bytes)
        if search.recompute_us >= time_us or search.peak_bytes() > budget_bytes:
            search.return_to(mark)
        else:
            saved = _by_saving(search, search.dropped())


def _by_saving(search: Search, numbers: Iterable[int]) -> list[tuple[float, int]]:
    """Time that keeping each drop would save, dearest first, with its number."""
    dropped = [number for number in numbers if search.ends[number] is not None]
    return sorted(((_saved_us(search, number), number) for number in dropped), reverse=True)


def _saved_us(search: Search, number: int) -> float:
    time_us, mark = search.recompute_us, search.mark()
    search.set_end(number, None)
    saved_us = time_us - search.recompute_us
    search.return_to(mark)
    return saved_us


def _keep_if_it_pays(search: Search, number: int, budget_bytes: int) -> bool:
    drop = search.drop(number)
    if drop is None or search.state.bytes_if_kept(drop) > budget_bytes:
        return False
    return _set_if_it_pays(search, number, None, budget_bytes)


def _end_if_it_pays(search: Search, number: int, end: int, budget_bytes: int) -> bool:
    drop = search.drop(number)
    if (
        drop is None
        or end >= drop.end
        or search.state.bytes_if_kept(drop._replace(start=end - 1)) > budget_bytes
    ):
        return False
    return _set_if_it_pays(search, number, end, budget_bytes)


def _set_if_it_pays(search: Search, number: int, end: int | None, budget_bytes: int) -> bool:
    time_us, mark = search.recompute_us, search.mark()
    if (
        search.set_end(number, end)
        and search.recompute_us < time_us
        and search.peak_bytes() <= budget_bytes
    ):
        return True
    search.return_to(mark)
    return False
