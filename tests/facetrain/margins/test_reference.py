"""The dense reference covers every margin, and every margin agrees with it, losses and gradients.

Here the margins run in float64 in a plain eager head, so both sides differ by rounding alone, of
float64 for most and of fp32 statistics for some: 1e-6 relative.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from facetrain.margins import MARGINS, Margin, Targets, build_margin
from tests.facetrain.margins.reference import DEFAULTS, reference_losses, reference_state

NUM_ROWS, NUM_CLASSES, DIM = 24, 7, 6


def eager_losses(
    margin: Margin, embeddings: Tensor, centers: Tensor, labels: Tensor, scale: float
) -> Tensor:
    """The loss as a head without any refinement computes it from a margin's methods."""
    lengths = embeddings.norm(dim=1)
    units = torch.nn.functional.normalize(embeddings, dim=1)
    cosines = units @ torch.nn.functional.normalize(centers, dim=1).T
    rows = torch.arange(len(labels))
    targets = cosines[rows, labels]
    shaped = margin(Targets(targets, rows, lengths if margin.uses_norms else None))
    others = cosines
    if margin.shapes_others:
        values = cosines.detach().T.clone()
        slopes = margin.shape_others(values, shaped.detach())
        others = values.T + slopes.T * (cosines - cosines.detach())
    is_target = torch.nn.functional.one_hot(labels, centers.shape[0]).bool()
    if margin.unified() is not None:
        softplus = torch.nn.functional.softplus
        negatives = softplus(scale * others - margin.bias, threshold=100)
        losses = softplus(margin.bias - scale * shaped, threshold=100)
        losses = losses + margin.others_weight * negatives.masked_fill(is_target, 0).sum(dim=1)
    else:
        logits = scale * torch.where(is_target, shaped[:, None], others)
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    penalty = margin.penalty(lengths)
    return losses if penalty is None else losses + penalty


def test_reference_covers_exactly_the_margins_with_their_defaults() -> None:
    assert set(DEFAULTS) == set(MARGINS)
    for name, defaults in DEFAULTS.items():
        margin = build_margin(name)
        assert {key: float(getattr(margin, key)) for key in margin.ranges} == defaults


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("options", ["defaults", "others"])
def test_margin_in_an_eager_head_agrees_with_the_reference(name: str, options: str) -> None:
    torch.manual_seed(3)
    embeddings = torch.randn(NUM_ROWS, DIM, dtype=torch.float64)
    # Lengths on both sides of MagFace's and AdaFace's ends; cosines from -1 to 1.
    embeddings *= torch.logspace(-1, 2.3, NUM_ROWS, dtype=torch.float64)[:, None]
    centers = torch.randn(NUM_CLASSES, DIM, dtype=torch.float64)
    labels = torch.arange(NUM_ROWS) % NUM_CLASSES
    embeddings[0] = -centers[0] + 0.05 * torch.randn(DIM)
    embeddings[1] = centers[1] + 0.05 * torch.randn(DIM)
    chosen = {} if options == "defaults" else _other_options(name)

    margin = build_margin(name, chosen)
    margin.initialise(NUM_CLASSES, 1.0)
    for step in range(3):
        noisy = embeddings + step
        cosines = torch.nn.functional.cosine_similarity(noisy, centers[labels])
        margin.observe(noisy.norm(dim=1).float(), cosines.float())
        margin.draw(NUM_ROWS)
    state = reference_state(margin, name)

    found, expected = [], []
    for function, results in ((eager_losses, found), (reference_losses, expected)):
        inputs = [tensor.clone().requires_grad_() for tensor in (embeddings, centers)]
        if function is eager_losses:
            losses = eager_losses(margin, *inputs, labels, 16.0)
        else:
            losses = reference_losses(name, *inputs, labels, 16.0, chosen, state)
        results += [losses, *torch.autograd.grad(losses.mean(), inputs)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def _other_options(name: str) -> dict[str, float]:
    """Every option away from its default, towards the middle of its range, whole where need be."""
    chosen = {}
    for option, (low, high) in MARGINS[name].ranges.items():
        default = DEFAULTS[name][option]
        chosen[option] = min(max(low, default * 0.7 + 0.02 * min(high - low, 1.0)), high)
    if "seed" in chosen:
        chosen["seed"] = 7.0
    if name == "magface":
        chosen["easy_margin"] = 1.0
    if name == "sphereface":
        chosen.update(value=3.3, lambda_min=0.0, lambda_base=0.5)
    return chosen


@pytest.mark.parametrize("name", MARGINS)
def test_reference_options_of_the_head(name: str) -> None:
    torch.manual_seed(5)
    embeddings = torch.randn(NUM_ROWS, DIM) * 20
    centers = torch.randn(NUM_CLASSES, DIM)
    labels = torch.arange(NUM_ROWS) % NUM_CLASSES
    margin = build_margin(name)
    margin.draw(NUM_ROWS)
    state = reference_state(margin, name)
    plain = reference_losses(name, embeddings, centers, labels, 8.0, {}, state)
    assert plain.dtype == torch.float64
    assert plain.shape == (NUM_ROWS,)

    # A center beside a far worse twin counts alone; a threshold above 1 filters nothing.
    twins = torch.stack([centers, -centers], dim=1).flatten(0, 1)
    kept = torch.nn.functional.cosine_similarity(embeddings[:, None], centers[None], dim=2)
    with_twins = reference_losses(name, embeddings, twins, labels, 8.0, {}, state, sub_centers=2)
    assert bool((kept > 0).all(dim=1).logical_not().any())
    positive = (kept > 0).all(dim=1)
    torch.testing.assert_close(with_twins[positive], plain[positive])
    same = reference_losses(
        name, embeddings, centers, labels, 8.0, {}, state, interclass_threshold=1.1
    )
    torch.testing.assert_close(same, plain)
    filtered = reference_losses(
        name, embeddings, centers, labels, 8.0, {}, state, interclass_threshold=0.0
    )
    assert bool((filtered <= plain + 1e-9).all())
    assert bool((filtered < plain).any())
    past = reference_losses(
        name, embeddings, centers, labels, 8.0, {}, state, margin_gradient="past"
    )
    torch.testing.assert_close(past, plain)
    assert math.isfinite(float(past.sum()))
