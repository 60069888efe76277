"""Classes in use: the batch's own always, others by chance, the same for any cut."""

from __future__ import annotations

import math

import pytest
import torch

from facetrain.classifier.sampling import ClassSampler
from facetrain.distributed import even_counts

CLASSES = 4000
LABELS = torch.tensor([5, 17, 17, 3999, 0, 2048])


def _draw(rate: float, step: int = 0, seed: int = 0, world_size: int = 1) -> torch.Tensor:
    sampler = ClassSampler(rate, CLASSES, seed)
    sampler.step = step
    parts, first = [], 0
    for count in even_counts(CLASSES, world_size):
        parts.append(sampler.draw(LABELS, first, count) + first)
        first += count
    return torch.cat(parts)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.999])
def test_the_batchs_own_classes_are_always_in_use(rate: float) -> None:
    drawn = _draw(rate).tolist()
    assert set(LABELS.tolist()) <= set(drawn)
    assert drawn == sorted(set(drawn))


@pytest.mark.parametrize("world_size", [2, 3, 7, 5000])
def test_any_number_of_ranks_draws_the_same_classes(world_size: int) -> None:
    assert torch.equal(_draw(0.3, step=4, world_size=world_size), _draw(0.3, step=4))


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_as_many_as_the_rate_says_in_the_mean_within_the_stated_deviation(rate: float) -> None:
    sizes = [len(_draw(rate, step)) for step in range(64)]
    deviation = math.sqrt(CLASSES * rate * (1 - rate))
    assert abs(sum(sizes) / 64 - rate * CLASSES) < 4 * deviation / math.sqrt(64)
    assert max(abs(size - rate * CLASSES) for size in sizes) < 5 * deviation


def test_positives_alone_where_they_are_more_than_the_rate_allows() -> None:
    assert _draw(0.0001).tolist() == sorted(set(LABELS.tolist()))


def test_draws_are_uniform_and_differ_between_steps_and_seeds() -> None:
    rate, steps = 0.25, 400
    times = torch.zeros(CLASSES)
    for step in range(steps):
        times[_draw(rate, step)] += 1
    others = torch.ones(CLASSES, dtype=torch.bool)
    others[LABELS] = False
    # Of 4,000 binomial counts: mean 100, deviation 8.7; the largest of so many is within 5.
    deviation = math.sqrt(steps * rate * (1 - rate))
    assert (times[others] - steps * rate).abs().max() < 5 * deviation
    assert times[others].std() == pytest.approx(deviation, rel=0.05)

    def shared(left: torch.Tensor, right: torch.Tensor) -> float:
        return len(set(left.tolist()) & set(right.tolist())) / CLASSES

    for other in (_draw(rate, step=1), _draw(rate, seed=1)):
        assert shared(_draw(rate), other) == pytest.approx(rate**2, abs=0.03)


def test_neighbouring_classes_are_drawn_independently() -> None:
    hits = torch.zeros((64, CLASSES))
    for step in range(64):
        hits[step, _draw(0.5, step)] = 1
    for distance in (1, 2, 16, 1024):
        both = (hits[:, distance:] * hits[:, :-distance]).mean()
        assert both.item() == pytest.approx(0.25, abs=0.01)
