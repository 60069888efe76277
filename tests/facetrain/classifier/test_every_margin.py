"""Every margin in the head equals its dense float64 reference: sharded, sampled, in any schedule.

One group of real ranks goes through all cases: losses, embedding gradients and stepped centers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier
from facetrain.distributed import Communicator, SingleCommunicator
from facetrain.margins import MARGINS, build_margin
from tests.facetrain.margins.reference import reference_losses, reference_state
from tests.ranks import raise_first, run_ranks

SIZE, CLASSES, SCALE = 16, 23, 12.0
LR, DECAY = 0.1, 5e-4
COUNTS = {1: [14], 2: [9, 5], 3: [8, 0, 6], 4: [6, 0, 7, 1]}

ROWS_AT_ONCE = ScheduleWish("row_chunks", tile_classes=4)
ROW_CHUNKS = ScheduleWish("row_chunks", chunk_rows=5, tile_classes=4)
CLASS_TILES = ScheduleWish("class_tiles", tile_classes=3)
TILES_OF_CHUNKS = ScheduleWish("class_tiles", chunk_rows=6, tile_classes=5)


@dataclass(frozen=True)
class Case:
    margin: str
    schedule: ScheduleWish
    options: dict[str, Any] = field(default_factory=dict)
    """Of the head."""


CASES = [
    *(Case(m, s) for m in MARGINS for s in (ROWS_AT_ONCE, CLASS_TILES)),
    *(Case(m, ROW_CHUNKS, {"sample_rate": 0.4}) for m in MARGINS),
    *(Case(m, CLASS_TILES, {"sample_rate": 0.6, "sub_centers": 3}) for m in MARGINS),
    *(Case(m, TILES_OF_CHUNKS, {"others_threshold": 0.2}) for m in MARGINS),
    *(Case(m, ROWS_AT_ONCE, {"through_margin": False, "sub_centers": 2}) for m in MARGINS),
]


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    embeddings = torch.randn((14, SIZE), generator=generator) * 4
    labels = torch.randint(CLASSES, (14,), generator=generator)
    return embeddings, labels


def _run(communicator: Communicator) -> list[dict[str, Any]]:
    """Each case's result on this rank."""
    found = []
    counts = COUNTS[communicator.world_size]
    embeddings, labels = (part.split(counts)[communicator.rank] for part in _batch())
    for case in CASES:
        head = ShardedClassifier(
            CLASSES,
            SIZE,
            build_margin(case.margin),
            communicator,
            scale=SCALE,
            optimizer=CenterSGD(LR, momentum=0.9, weight_decay=DECAY),
            schedule=case.schedule,
            seed=3,
            **case.options,
        )
        before = head.centers.detach().clone()
        leaf = embeddings.clone().requires_grad_()
        loss = head(leaf, labels, counts=counts)
        loss.backward()
        in_use = torch.arange(CLASSES)
        if head.sampler is not None:
            head.sampler.step -= 1
            in_use = head.sampler.draw(_batch()[1], 0, CLASSES)
        found.append(
            {
                "loss": loss.item(),
                "gradient": leaf.grad,
                "before": before,
                "after": head.centers.detach(),
                "in_use": in_use,
                "state": reference_state(head.margin, case.margin),
                "bias_gradient": [p.grad for p in head.margin.parameters()],
            }
        )
    return found


def _expected(case: Case, result: dict[str, Any], centers: torch.Tensor) -> dict[str, Any]:
    embeddings, labels = _batch()
    per_class = case.options.get("sub_centers", 1)
    in_use = result["in_use"]
    rows = (in_use[:, None] * per_class + torch.arange(per_class)).reshape(-1)
    leaf = embeddings.double().requires_grad_()
    weights = centers.double()[rows].requires_grad_()
    state = {
        key: value.clone().requires_grad_(key == "bias") for key, value in result["state"].items()
    }
    losses = reference_losses(
        case.margin,
        leaf,
        weights,
        torch.searchsorted(in_use, labels),
        SCALE,
        state=state,
        interclass_threshold=case.options.get("others_threshold"),
        sub_centers=per_class,
        margin_gradient="through" if case.options.get("through_margin", True) else "past",
    )
    losses.mean().backward()
    assert weights.grad is not None
    after = centers.double().clone()
    after[rows] -= LR * (weights.grad + DECAY * after[rows])
    bias = [] if "bias" not in state else [state["bias"].grad]
    return {"loss": losses.mean().item(), "gradient": leaf.grad, "after": after, "bias": bias}


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def results(request: pytest.FixtureRequest) -> list[list[dict[str, Any]]]:
    """[rank][case] of a world of 1, 2, 3 or 4."""
    world_size: int = request.param
    if world_size == 1:
        return [_run(SingleCommunicator())]
    return raise_first(run_ranks(_run, world_size, timeout_s=120))


@pytest.mark.parametrize("margin", MARGINS)
def test_the_sharded_head_equals_the_dense_reference(
    results: list[list[dict[str, Any]]], margin: str
) -> None:
    for number, case in enumerate(CASES):
        if case.margin != margin:
            continue
        ranks = [rank[number] for rank in results]
        before = torch.cat([rank["before"] for rank in ranks])
        expected = _expected(case, ranks[0], before)
        # fp32 sums of D = 16 terms, times s = 12: a few 1e-6 of the largest entry; SphereFace's
        # slope is up to m^2 = 16 times steeper.
        for rank in ranks:
            assert rank["loss"] == pytest.approx(expected["loss"], rel=1e-5), case
            for found, bias in zip(rank["bias_gradient"], expected["bias"], strict=True):
                torch.testing.assert_close(found.double(), bias.view_as(found), rtol=1e-5, atol=0)
        gradient = torch.cat([rank["gradient"] for rank in ranks]).double()
        error = (gradient - expected["gradient"]).abs().max() / expected["gradient"].abs().max()
        assert error < 1e-5, case
        step = torch.cat([rank["after"] for rank in ranks]).double() - before.double()
        expected_step = expected["after"] - before.double()
        # Beside 1e-5, the step is a difference of fp32 centers of about 0.01, known to 1e-9.
        error = (step - expected_step).abs().max() / expected_step.abs().max()
        assert error < 2e-5, case


def test_statistics_of_a_margin_do_not_depend_on_the_ranks(
    results: list[list[dict[str, Any]]],
) -> None:
    alone = _run(SingleCommunicator())
    for number, case in enumerate(CASES):
        for rank in results:
            assert rank[number]["state"].keys() == alone[number]["state"].keys()
            for name, value in alone[number]["state"].items():
                # Means of N fp32 numbers, which reach the ranks by other sums.
                torch.testing.assert_close(rank[number]["state"][name], value, rtol=1e-6, atol=1e-7)
        if "sample_rate" in case.options:
            assert torch.equal(results[0][number]["in_use"], alone[number]["in_use"])


def test_sampling_leaves_classes_not_in_use_as_they_were(
    results: list[list[dict[str, Any]]],
) -> None:
    for number, case in enumerate(CASES):
        if "sample_rate" not in case.options:
            continue
        per_class = case.options.get("sub_centers", 1)
        before = torch.cat([rank[number]["before"] for rank in results])
        after = torch.cat([rank[number]["after"] for rank in results])
        moved = (before != after).any(1).view(CLASSES, per_class).any(1).nonzero().squeeze(1)
        in_use = results[0][number]["in_use"]
        assert len(in_use) < CLASSES
        assert moved.tolist() == in_use.tolist()
