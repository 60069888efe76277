"""Margin softmax cross-entropy over classes that are cut over ranks, gradients in the same pass.

For each chunk of rows n: cosines to the local centers, the margin on the target entry, their
exponentials and row sums; one small all-reduce; then the gradient of that chunk at once. Logits
never exist beyond one chunk, and no product is done twice. With p = softmax(s * margin_cosine),
y the target and m' the margin's slope there,

    d loss / d cosine_nk = s * (p_nk - [k = y]) * (m' if k = y else 1)

Shapes: N rows of the global batch, D embedding, K local classes, n rows of one chunk.

No maximum over classes is exchanged: cosines are bounded by the margin's own bound, so
exp(s * (cosine - bound)) cannot overflow. Where a row's sum underflows instead (few classes, all
far away) the chunk is done again with its true maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from facetrain.distributed import Communicator
from facetrain.margins import Margin

# Below this the largest terms of a row's fp32 sum are near the denormals and lose digits.
_SMALLEST_SUM = 1e-30


@dataclass(frozen=True)
class SoftmaxGradients:
    """What one pass gives.

    Attributes:
        loss_n: loss of every row of the global batch, [N], equal on all ranks.
        unit_features_nd: gradient for the unit features through the *local* classes, [N, D];
            its sum over ranks is the whole. None when gradients were not asked for.
        centers_kd: gradient for the local centers, [K, D]; None when not asked for.
    """

    loss_n: Tensor
    unit_features_nd: Tensor | None
    centers_kd: Tensor | None


def inverse_norms(vectors: Tensor) -> Tensor:
    """1 / L2 norm of each row, [rows]; 0 for a row of zero length, which so gets no gradient."""
    norms = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float32)
    return torch.where(norms > 1e-12, 1.0 / norms, torch.zeros_like(norms))


def margin_softmax(
    unit_features_nd: Tensor,
    centers_kd: Tensor,
    local_targets_n: Tensor,
    margin: Margin,
    scale: float,
    communicator: Communicator,
    *,
    gradient_weight: float | None,
    chunk_rows: int,
    product_dtype: torch.dtype = torch.float32,
) -> SoftmaxGradients:
    """Loss of every row and the gradients of `gradient_weight` times their sum.

    One all-reduce of 2 floats a row per chunk; every rank must pass the same rows and `chunk_rows`.

    Args:
        unit_features_nd: features of all ranks, of length 1, fp32 [N, D].
        centers_kd: this rank's class centers, of any length, fp32 [K, D]; K may be 0.
        local_targets_n: row's target as an index into the local centers, -1 where it belongs to
            another rank, int64 [N].
        scale: s; logits are s times (margin) cosines.
        gradient_weight: factor of every row's loss in what is differentiated (1 / N for a mean);
            None = no gradients.
        chunk_rows: rows whose logits exist at a time, at least 1.
        product_dtype: of the matrix products; sums and exponentials are fp32.
    """
    features = unit_features_nd.to(product_dtype)
    centers = centers_kd.to(product_dtype)
    inverse_norms_k = inverse_norms(centers_kd)
    with_gradients = gradient_weight is not None
    loss_n = unit_features_nd.new_empty(len(unit_features_nd))
    feature_gradient = torch.empty_like(unit_features_nd) if with_gradients else None
    center_gradient = torch.zeros_like(centers_kd) if with_gradients else None

    for start in range(0, len(unit_features_nd), chunk_rows):
        chunk = slice(start, start + chunk_rows)
        targets = local_targets_n[chunk]
        rows = (targets >= 0).nonzero().squeeze(1)
        classes = targets[rows]

        def margin_cosines(
            chunk: slice = chunk, rows: Tensor = rows, classes: Tensor = classes
        ) -> tuple[Tensor, Tensor, Tensor]:
            """Cosines [n, K] with the margin applied, those of targets, and its slopes there."""
            cosines = torch.mm(features[chunk], centers.T).float().mul_(inverse_norms_k)
            with torch.enable_grad():
                plain = cosines[rows, classes].requires_grad_()
                with_margin = margin(plain)
                (slopes,) = torch.autograd.grad(with_margin.sum(), plain)
            cosines[rows, classes] = with_margin.detach()
            return cosines, with_margin.detach(), slopes

        exponentials, target_cosines, slopes = margin_cosines()
        shifts: float | Tensor = scale * margin.bound
        # Row 0: sums of exponentials. Row 1: target logits, added by the one rank that has them.
        totals = exponentials.new_zeros((2, len(targets)))
        totals[0] = exponentials.mul_(scale).sub_(shifts).exp_().sum(1)
        totals[1, rows] = scale * target_cosines
        communicator.all_reduce(totals)
        if bool((totals[0] < _SMALLEST_SUM).any()):
            exponentials, _, _ = margin_cosines()
            shifts = _row_maxima(exponentials, communicator).mul_(scale)
            totals[0] = exponentials.mul_(scale).sub_(shifts[:, None]).exp_().sum(1)
            communicator.all_reduce(totals[0])
        loss_n[chunk] = totals[0].log() + shifts - totals[1]
        if gradient_weight is None:
            continue

        assert feature_gradient is not None
        assert center_gradient is not None
        cosine_gradient = exponentials.div_(totals[0][:, None])
        cosine_gradient[rows, classes] = (cosine_gradient[rows, classes] - 1.0) * slopes
        cosine_gradient.mul_(inverse_norms_k * (scale * gradient_weight))
        products = cosine_gradient.to(product_dtype)
        feature_gradient[chunk] = torch.mm(products, centers)
        if product_dtype == torch.float32:
            center_gradient.addmm_(products.T, features[chunk])
        else:
            center_gradient += torch.mm(products.T, features[chunk])

    if center_gradient is not None:
        _remove_radial_part(center_gradient, centers_kd, inverse_norms_k)
    return SoftmaxGradients(loss_n, feature_gradient, center_gradient)


def _row_maxima(values: Tensor, communicator: Communicator) -> Tensor:
    """Largest value of each row over all ranks' columns, [n]; one all-reduce."""
    no_classes = values.new_full((len(values),), -torch.inf)
    maxima = values.amax(1) if values.shape[1] else no_classes
    return communicator.all_reduce(maxima, "max")


def _remove_radial_part(gradient_kd: Tensor, centers_kd: Tensor, inverse_norms_k: Tensor) -> None:
    """Take the component along the center out of its gradient, in place: its length is free."""
    radial_k = (gradient_kd * centers_kd).sum(1) * inverse_norms_k.square()
    gradient_kd.addcmul_(centers_kd, radial_k[:, None], value=-1.0)
