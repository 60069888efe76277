from __future__ import annotations

import torch
from torch import nn

from memopt.live_bytes import LiveBytes

KIB = 1024


def kib(size: int) -> torch.Tensor:
    return torch.zeros(size * KIB // 4)


def test_storage_counts_until_its_last_view_dies() -> None:
    with LiveBytes() as live:
        x = kib(4)
        view = x[:10].view(2, 5)
        del x
        assert live.live_bytes == 4 * KIB
        del view
        assert live.live_bytes == 0
    assert live.peak_bytes == 4 * KIB


def test_outside_memory_is_not_counted_through_views_and_in_place_results() -> None:
    outside = kib(4)
    with LiveBytes() as live:
        view = outside.view(-1, 2).t()
        view.mul_(2)
        torch.add(outside, 1, out=outside)
    assert live.peak_bytes == 0
    assert live.counted_bytes(outside) == 0


def test_peak_includes_what_overlaps_and_not_what_does_not() -> None:
    with LiveBytes() as live:
        a = kib(4)
        b = a + 1
        del a
        c = b + 1
        del b
        assert live.peak_bytes == 8 * KIB
        live.reset_peak()
        assert live.peak_bytes == 4 * KIB
        assert live.counted_bytes(c) == 4 * KIB


def test_count_falls_after_the_region() -> None:
    with LiveBytes() as live:
        x = kib(4)
    assert live.live_bytes == 4 * KIB
    del x
    assert live.live_bytes == 0


def test_paused_creations_never_count() -> None:
    with LiveBytes() as live:
        kept = kib(2)
        with live.paused():
            hidden = kib(8)
            del kept
            assert live.live_bytes == 0
        hidden.add_(1)
        seen = hidden + 1
    assert live.live_bytes == seen.nbytes
    assert live.counted_bytes(hidden) == 0


def test_resized_storage_is_counted_at_its_new_size() -> None:
    with LiveBytes() as live:
        x = kib(1)
        x.resize_(512)
        assert live.live_bytes == 2 * KIB
    del x
    assert live.live_bytes == 0


def test_nested_counters_count_each_for_itself() -> None:
    with LiveBytes() as outer:
        first = kib(1)
        with LiveBytes() as inner:
            second = kib(2)
        assert inner.live_bytes == 2 * KIB
        assert outer.live_bytes == 3 * KIB
        del first, second
    assert (inner.live_bytes, outer.live_bytes) == (0, 0)


def test_timeline_follows_each_operator() -> None:
    with LiveBytes(record_timeline=True) as live:
        x = kib(1)
        y = x + 1
        del x
        y = y + 1
    assert live.timeline == [1 * KIB, 2 * KIB, 2 * KIB]
    assert live.live_bytes == 1 * KIB


def test_forward_and_backward_peak_derived_by_hand() -> None:
    """relu(x w) with x given: z dies (relu saves its result), the loss is one float."""
    rows, size = 64, 32
    weight = nn.Parameter(torch.ones(size, size))
    x = torch.ones(rows, size)
    activation, gradient = rows * size * 4, size * size * 4
    with LiveBytes() as live:
        y = torch.relu(x @ weight)
        assert live.live_bytes == activation
        assert live.peak_bytes == 2 * activation
        loss = y.sum()
        del y
        live.reset_peak()
        loss.backward()
    # Saved relu output, gradient of z beside it; the gradient of the weight comes after the former
    # died. Two floats: the loss and its gradient (which `sum` expands without memory).
    assert live.peak_bytes == 2 * activation + 8
    del loss
    assert live.live_bytes == gradient
    weight.grad = None
    assert live.live_bytes == 0


def test_sparse_results_are_passed_by() -> None:
    with LiveBytes() as live:
        sparse = torch.eye(4).to_sparse()
        assert sparse.sum() == 4
    del sparse
    assert live.peak_bytes > 0
