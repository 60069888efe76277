"""Every margin's loss, dense, eager and in float64: what the sharded head is compared with.

Written from the papers and independent of facetrain/margins: angles by arccos, whole [N, C]
matrices, defaults typed in again. Running statistics, random draws and learned numbers are plain
arguments, so that only what they are at the moment of the loss matters:

    losses = reference_losses("adaface", embeddings, centers, labels, 64.0, {}, {"mean": 20.1, ...})
    losses.mean().backward()

N rows of the global batch, D embedding size, C classes, S centers a class. For a sampled head pass
the sampled centers and labels renumbered to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DEFAULTS: dict[str, dict[str, float]] = {
    "adaface": {"value": 0.4, "h": 0.333, "t_alpha": 0.01},
    "arcface": {"value": 0.5},
    "combined": {"m1": 1.0, "m2": 0.3, "m3": 0.2},
    "cosface": {"value": 0.35},
    "curricularface": {"value": 0.5, "t_alpha": 0.01},
    "elasticface_arc": {"value": 0.5, "std": 0.05, "seed": 0.0},
    "elasticface_cos": {"value": 0.35, "std": 0.05, "seed": 0.0},
    "magface": {
        "l_m": 0.45,
        "u_m": 0.8,
        "l_a": 10.0,
        "u_a": 110.0,
        "lambda_g": 35.0,
        "easy_margin": 0.0,
    },
    "sphereface": {
        "value": 4.0,
        "lambda_base": 1000.0,
        "lambda_gamma": 0.12,
        "lambda_power": 1.0,
        "lambda_min": 5.0,
    },
    "uniface": {"value": 0.4, "others_weight": 1.0},
}
"""Every margin and its paper's values."""

STATE: dict[str, tuple[str, ...]] = {
    "adaface": ("mean", "std"),
    "curricularface": ("t",),
    "elasticface_arc": ("margins_n",),
    "elasticface_cos": ("margins_n",),
    "sphereface": ("step",),
    "uniface": ("bias",),
}
"""What `state` must hold; margins not named here need none. All are buffers or parameters of that
name in the margin's module."""


def reference_state(margin: torch.nn.Module, name: str) -> dict[str, Any]:
    """What `reference_losses` needs from a margin, read after its observe and draw of the step."""
    return {key: getattr(margin, key).detach().double().clone() for key in STATE.get(name, ())}


def reference_losses(
    name: str,
    embeddings: Tensor,
    centers: Tensor,
    labels: Tensor,
    scale: float,
    options: Mapping[str, float] | None = None,
    state: Mapping[str, Any] | None = None,
    *,
    interclass_threshold: float | None = None,
    sub_centers: int = 1,
    margin_gradient: str = "through",
) -> Tensor:
    """Loss of each row, float64 [N]; differentiable in embeddings, centers and state's `bias`.

    Args:
        name: of the margin, a key of `DEFAULTS`.
        embeddings: of the global batch, not normalised, [N, D], any float type.
        centers: not normalised, [C, D], or [C * S, D] with the S centers of a class in a row.
        labels: classes, int64 [N].
        scale: s; logits are s times (margin) cosines.
        options: those of the margin that are not its paper's.
        state: `STATE` names what is needed, as the margin holds it after `observe` and `draw`:
            adaface: mean and std of lengths; curricularface: t; elasticface: `margins_n`, N draws;
            sphereface: step, the iteration's number, 1 in the first; uniface: bias, a float or a
            tensor that gets a gradient.
        interclass_threshold: other classes' plain cosines above it count as 0, without gradient,
            as `interclass_filtering_threshold` of arcface_torch; for UniFace too.
        sub_centers: S; a class's cosine is the largest of its centers'.
        margin_gradient: "through" the margin, or straight "past" it: the target cosine's slope is
            1 and lengths get no gradient from the margin (from MagFace's penalty they do). Changed
            cosines of other classes (CurricularFace) always get their true slope.
    """
    values = {**DEFAULTS[name], **(options or {})}
    held = {
        key: torch.as_tensor((state or {})[key], dtype=torch.float64) for key in STATE.get(name, ())
    }
    if unknown := set(values) - set(DEFAULTS[name]):
        raise KeyError(f"{name} has no option {sorted(unknown)}")

    features = embeddings.double()
    lengths = features.square().sum(dim=1).sqrt()
    units = centers.double()
    units = units / units.square().sum(dim=1, keepdim=True).sqrt()
    all_cosines = (features / lengths[:, None]) @ units.T
    cosines = all_cosines.unflatten(1, (-1, sub_centers)).amax(dim=2)

    rows = torch.arange(len(labels))
    is_target = torch.zeros(cosines.shape, dtype=torch.bool)
    is_target[rows, labels] = True
    targets = cosines[rows, labels]
    shaped_targets = _target(name, targets, lengths, values, held)
    if margin_gradient == "past":
        shaped_targets = targets + (shaped_targets - targets).detach()

    others = cosines
    if interclass_threshold is not None:
        others = torch.where(others > interclass_threshold, torch.zeros_like(others), others)
    if name == "curricularface":
        hard = others.detach() > shaped_targets.detach()[:, None]
        others = torch.where(hard, others * (held["t"] + others), others)

    if name == "uniface":
        zero = torch.zeros((), dtype=torch.float64)
        positive = torch.logaddexp(zero, held["bias"] - scale * shaped_targets)
        negative = torch.logaddexp(zero, scale * others - held["bias"])
        negatives = torch.where(is_target, torch.zeros_like(negative), negative).sum(dim=1)
        return positive + values["others_weight"] * negatives

    logits = scale * torch.where(is_target, shaped_targets[:, None], others)
    losses = torch.logsumexp(logits, dim=1) - scale * shaped_targets
    if name == "magface":
        held_lengths = lengths.clamp(values["l_a"], values["u_a"])
        losses = losses + values["lambda_g"] * (
            held_lengths / values["u_a"] ** 2 + 1 / held_lengths
        )
    return losses


def _target(
    name: str,
    cosines: Tensor,
    lengths: Tensor,
    values: Mapping[str, float],
    held: Mapping[str, Tensor],
) -> Tensor:
    """Target cosines after the margin, [N]."""
    angles = torch.arccos(cosines.clamp(-1 + 1e-15, 1 - 1e-15))
    if name in ("cosface", "uniface"):
        return cosines - values["value"]
    if name == "elasticface_cos":
        return cosines - held["margins_n"]
    if name in ("arcface", "curricularface"):
        return _arc(angles, torch.full_like(angles, values["value"]))
    if name == "elasticface_arc":
        return _arc(angles, held["margins_n"])
    if name == "combined":
        return _psi(values["m1"] * angles + values["m2"]) - values["m3"]
    if name == "sphereface":
        falling = (1 + values["lambda_gamma"] * held["step"]) ** values["lambda_power"]
        weight = max(values["lambda_min"], values["lambda_base"] / float(falling))
        return (weight * torch.cos(angles) + _psi(values["value"] * angles)) / (1 + weight)
    if name == "magface":
        share = (lengths.clamp(values["l_a"], values["u_a"]) - values["l_a"]) / (
            values["u_a"] - values["l_a"]
        )
        margins = (1 - share) * values["l_m"] + share * values["u_m"]
        if values["easy_margin"]:
            return torch.where(angles < math.pi / 2, torch.cos(angles + margins), cosines)
        return _arc(angles, margins)
    if name == "adaface":
        spread = (lengths.detach().clamp(0.001, 100) - held["mean"]) / (held["std"] + 0.001)
        quality = (values["h"] * spread).clamp(-1, 1)
        moved = (angles - values["value"] * quality).clamp(0, math.pi)
        return torch.cos(moved) - values["value"] - values["value"] * quality
    raise KeyError(name)


def _arc(angles: Tensor, margins: Tensor) -> Tensor:
    """cos(theta + m), past pi cos(theta) - m sin(m)."""
    beyond = torch.cos(angles) - margins * torch.sin(margins)
    return torch.where(angles + margins < math.pi, torch.cos(angles + margins), beyond)


def _psi(angles: Tensor) -> Tensor:
    """(-1)^k cos(a) - 2k, each row by itself."""
    pieces = [int(angle // math.pi) for angle in angles.tolist()]
    signs = torch.tensor([(-1.0) ** k for k in pieces], dtype=torch.float64)
    return signs * torch.cos(angles) - 2 * torch.tensor(pieces, dtype=torch.float64)
