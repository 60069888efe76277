"""The tile kernel equals its formula, and a step with it a step in torch. Run by
test_triton_tile.py with TRITON_INTERPRET=1.

Cosines are sums of D products in fp32: wrong by 2**-23 or two, and by s times that in a logit.
Products of bf16 (or fp16) operands are exact in fp32, so the same holds for them against the
formula of the rounded operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier, tiles
from facetrain.classifier.triton_tile import Finish, tile_sums, unavailable
from facetrain.distributed import SingleCommunicator
from facetrain.margins import build_margin

SCALE = 16.0
TOLERANCE = SCALE * 2**-22
HARDNESS = 0.3


@dataclass(frozen=True)
class Tile:
    """What a kernel is given."""

    centers: torch.Tensor
    features: torch.Tensor
    inverse_norms: torch.Tensor
    places: torch.Tensor
    margin_cosines: torch.Tensor

    @classmethod
    def drawn(cls, k: int, n: int, size: int, dtype: torch.dtype = torch.float32) -> Tile:
        """Targets lie in the tile, before it and after it."""
        generator = torch.Generator().manual_seed(100 * k + n)
        centers = torch.randn((k, size), generator=generator) * 3
        features = functional.normalize(torch.randn((n, size), generator=generator))
        places = torch.randint(-k, 2 * k, (n,), generator=generator)
        places[0] = k - 1
        margin_cosines = torch.rand(n, generator=generator) * 0.4 - 0.2
        inverse_norms = 1.0 / centers.norm(dim=1)
        return cls(centers, features.to(dtype), inverse_norms, places, margin_cosines)

    def run(self, shift: float | torch.Tensor = SCALE, **options: Any) -> torch.Tensor:
        arguments = (self.centers, self.features, self.inverse_norms, self.places)
        return tile_sums(*arguments, SCALE, shift, **options)

    def expected(
        self,
        shift: float | torch.Tensor = SCALE,
        threshold: float | None = None,
        hardness: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Terms and slopes, class by class and row by row in float64, [k, n]."""
        terms = torch.zeros((len(self.centers), len(self.features)), dtype=torch.float64)
        slopes = torch.ones_like(terms)
        shifts = torch.as_tensor(shift).expand(len(self.features)).double()
        units = self.centers * self.inverse_norms[:, None]
        cosines = units.to(self.features.dtype).double() @ self.features.double().T
        for k in range(len(self.centers)):
            for n, margin_cosine in enumerate(self.margin_cosines.double()):
                cosine = cosines[k, n]
                if threshold is not None and cosine > threshold:
                    cosine, slopes[k, n] = 0.0 * cosine, 0.0
                elif hardness is not None and cosine > margin_cosine:
                    slopes[k, n] = 2 * cosine + hardness
                    cosine = cosine * (cosine + hardness)
                if k != self.places[n]:
                    terms[k, n] = torch.exp(SCALE * cosine - shifts[n])
        return terms, slopes


def _close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    """Every entry, to a share of itself."""
    found = found.double()
    error = (found - expected).abs()
    assert bool((error <= tolerance * expected.abs() + 1e-30).all()), error.max()


def test_the_interpreter_makes_the_kernel_available_on_a_cpu() -> None:
    assert unavailable(torch.device("cpu")) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("k", "n", "size"), [(1, 1, 40), (32, 32, 32), (70, 33, 40), (5, 40, 3)])
def test_sums_and_terms_of_ragged_tiles(k: int, n: int, size: int, dtype: torch.dtype) -> None:
    tile = Tile.drawn(k, n, size, dtype)
    terms, slopes = tile.expected()
    out = torch.full((k, n), torch.nan)
    sums = tile.run(out=out)
    # The interpreter cuts bf16 off, 2**-8 at most, where rounding errs by 2**-9.
    tolerance = math.expm1(SCALE * 1.5 * 2**-8) if dtype == torch.bfloat16 else TOLERANCE
    _close(sums, terms.sum(0), tolerance)
    _close(out, terms * slopes, tolerance)
    assert out[k - 1, 0] == 0
    torch.testing.assert_close(tile.run(), sums, rtol=0, atol=0)


def test_the_length_of_centers_does_not_matter_in_fp16() -> None:
    tile = Tile.drawn(40, 9, 24, torch.float16)
    short = replace(
        tile, centers=tile.centers * 2.0**-24, inverse_norms=tile.inverse_norms * 2.0**24
    )
    torch.testing.assert_close(short.run(), tile.run(), rtol=0, atol=0)


def test_each_row_has_its_own_shift() -> None:
    tile = Tile.drawn(40, 9, 24)
    shift = torch.linspace(-4.0, 4.0, 9)
    _close(tile.run(shift), tile.expected(shift)[0].sum(0))


def test_cosines_above_the_threshold_count_as_0() -> None:
    tile = Tile.drawn(70, 20, 24)
    out = torch.empty((70, 20))
    terms, slopes = tile.expected(threshold=0.2)
    assert 0 < (slopes == 0).sum() < slopes.numel()
    _close(tile.run(threshold=0.2, out=out), terms.sum(0))
    _close(out, terms * slopes)


@pytest.mark.parametrize("threshold", [None, 0.2])
def test_curricularfaces_hard_classes(threshold: float | None) -> None:
    tile = Tile.drawn(70, 20, 24)
    out = torch.empty((70, 20))
    terms, slopes = tile.expected(threshold=threshold, hardness=HARDNESS)
    curriculum = (torch.tensor(HARDNESS), tile.margin_cosines)
    sums = tile.run(threshold=threshold, curriculum=curriculum, out=out)
    _close(sums, terms.sum(0))
    # A slope 2 c + t near 0 has lost digits: by terms at most 2**-21 each.
    assert ((out - terms * slopes).abs() <= terms * (TOLERANCE + 2**-21)).all()


@pytest.mark.parametrize("out_type", [torch.float32, torch.bfloat16])
def test_finished_derivatives(out_type: torch.dtype) -> None:
    tile = Tile.drawn(70, 20, 24)
    terms, _ = tile.expected()
    generator = torch.Generator().manual_seed(1)
    factors, target_values = torch.randn((2, 20), generator=generator).unbind()
    for n, place in enumerate(tile.places):
        if 0 <= place < 70:
            terms[place, n] = target_values[n]
    expected = terms * factors.double() * tile.inverse_norms.double()[:, None]
    out = torch.empty((70, 20), dtype=out_type)
    sums = tile.run(out=out, finish=Finish(factors, target_values))
    _close(sums, tile.expected()[0].sum(0))
    # The interpreter cuts bf16 off instead of rounding it.
    _close(out, expected, TOLERANCE if out_type == torch.float32 else 2**-7)


def test_nan_features_give_nan_sums() -> None:
    tile = Tile.drawn(40, 6, 24)
    tile.features[2, 3] = torch.nan
    assert tile.run().isnan().tolist() == [False, False, True, False, False, False]


def test_no_class_or_no_row_is_no_work() -> None:
    tile = Tile.drawn(3, 2, 8)
    none = tile.centers[:0], tile.features, tile.inverse_norms[:0], tile.places
    assert tile_sums(*none, SCALE, SCALE).tolist() == [0, 0]
    none = tile.centers, tile.features[:0], tile.inverse_norms, tile.places[:0]
    assert tile_sums(*none, SCALE, SCALE).shape == (0,)


# --- a whole step --------------------------------------------------------------------------------

CLASSES, ROWS, SIZE = 75, 13, 24
SCHEDULES = {
    "row_chunks": ScheduleWish("row_chunks", chunk_rows=7, tile_classes=40),
    "rows_at_once": ScheduleWish("row_chunks", chunk_rows=ROWS, tile_classes=40),
    "class_tiles": ScheduleWish("class_tiles", tile_classes=40),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _step(margin: str, schedule: str, **options: Any) -> tuple[torch.Tensor, ...]:
    """Loss, gradient of the embeddings, stepped centers."""
    head = ShardedClassifier(
        CLASSES,
        SIZE,
        build_margin(margin),
        SingleCommunicator(),
        scale=SCALE,
        optimizer=CenterSGD(lr=0.5),
        schedule=SCHEDULES[schedule],
        seed=3,
        **options,
    )
    generator = torch.Generator().manual_seed(11)
    embeddings = torch.randn((ROWS, SIZE), generator=generator).requires_grad_()
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    loss = head(embeddings, labels)
    loss.backward()
    head.step()
    assert embeddings.grad is not None
    return loss.detach(), embeddings.grad, head.centers.detach()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each launch of the kernel was to write anything but sums."""
    found: list[bool] = []

    def counted(*arguments: Any, out: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        found.append(out is not None)
        return tile_sums(*arguments, out=out, **options)

    monkeypatch.setattr(tiles, "tile_sums", counted)
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("margin", "options"),
    [
        ("arcface", {}),
        ("arcface", {"product_dtype": "bf16"}),
        ("cosface", {"product_dtype": "fp16"}),
        ("curricularface", {"others_threshold": 0.3}),
        ("cosface", {"sample_rate": 0.6}),
    ],
)
def test_step_equals_that_in_torch(
    margin: str,
    options: dict[str, Any],
    schedule: str,
    launches: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "product_dtype" in options:
        options = {"product_dtype": DTYPES[options["product_dtype"]]}
    by_kernel = _step(margin, schedule, **options)
    assert launches
    monkeypatch.setattr(tiles, "unavailable", lambda device: "switched off")
    launches.clear()
    in_torch = _step(margin, schedule, **options)
    assert not launches
    # Where derivatives are rounded to 16 bits, the last digit of one that lies between two.
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(
        options.get("product_dtype", torch.float32), 0.0
    )
    for found, expected in zip(by_kernel, in_torch, strict=True):
        error = (found - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE + rounding


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # All classes in one launch for the sums, then each of the two tiles.
        ("class_tiles", [False, True, True]),
        ("rows_at_once", [True, True]),
    ],
)
def test_launches_of_a_step(schedule: str, expected: list[bool], launches: list[bool]) -> None:
    _step("arcface", schedule)
    assert launches == expected


@pytest.mark.parametrize(
    "build",
    [
        lambda: _step("uniface", "class_tiles"),
        lambda: _step("arcface", "class_tiles", sub_centers=2),
    ],
)
def test_what_the_kernel_does_not_know_is_left_to_torch(
    build: Callable[[], Any], launches: list[bool]
) -> None:
    build()
    assert launches == []
