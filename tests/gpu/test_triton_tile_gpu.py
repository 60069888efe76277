"""The tile kernel on a GPU: equal to torch at real sizes, and no logits in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional

from facetrain.classifier import CenterSGD, ScheduleWish, ShardedClassifier, tiles
from facetrain.classifier.triton_tile import tile_sums, unavailable
from facetrain.distributed import SingleCommunicator
from facetrain.margins import build_margin

pytestmark = pytest.mark.gpu
SIZE = 512


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = unavailable(device)
    if reason is not None:
        pytest.skip(reason)
    return device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("k", "n"), [(20_000, 1024), (9_999, 129), (1, 1)])
def test_sums_and_terms_equal_float64(
    k: int, n: int, dtype: torch.dtype, gpu: torch.device
) -> None:
    generator = torch.Generator(gpu).manual_seed(1)
    centers = torch.randn((k, SIZE), generator=generator, device=gpu)
    features = torch.randn((n, SIZE), generator=generator, device=gpu)
    features = functional.normalize(features).to(dtype)
    places = torch.randint(-k, 2 * k, (n,), generator=generator, device=gpu)
    inverse_norms = 1.0 / centers.norm(dim=1)
    units = (centers * inverse_norms[:, None]).to(dtype)
    cosines = units.double() @ features.double().T
    terms = (64.0 * cosines - 64.0).exp_()
    inside = ((places >= 0) & (places < k)).nonzero().squeeze(1)
    terms[places[inside], inside] = 0.0
    out = torch.empty((k, n), device=gpu)
    sums = tile_sums(centers, features, inverse_norms, places, 64.0, 64.0, out=out)
    # s times a cosine's error (512 products added up in fp32), and exp's of |logit| 2**-24.
    tolerance = 64.0 * 2**-20
    torch.testing.assert_close(sums.double(), terms.sum(0), rtol=tolerance, atol=0)
    torch.testing.assert_close(out.double(), terms, rtol=tolerance, atol=0)
    again = tile_sums(centers, features, inverse_norms, places, 64.0, 64.0, out=out)
    torch.testing.assert_close(again, sums, rtol=0, atol=0)


def _step(device: torch.device, num_classes: int, rows: int, **options: Any) -> Any:
    head = ShardedClassifier(
        num_classes,
        SIZE,
        build_margin(options.pop("margin", "arcface")),
        SingleCommunicator(device),
        optimizer=CenterSGD(lr=0.1),
        **options,
    )
    generator = torch.Generator(device).manual_seed(2)
    embeddings = torch.randn((rows, SIZE), generator=generator, device=device).requires_grad_()
    labels = torch.randint(num_classes, (rows,), generator=generator, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    loss = head(embeddings, labels)
    loss.backward()
    peak_bytes = torch.cuda.max_memory_allocated(device) - before
    head.step()
    return loss.detach(), embeddings.grad, head.centers.detach(), peak_bytes


@pytest.mark.parametrize("margin", ["arcface", "curricularface"])
@pytest.mark.parametrize("schedule", ["row_chunks", "class_tiles"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_step_equals_that_in_torch(
    dtype: torch.dtype,
    schedule: str,
    margin: str,
    gpu: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"margin": margin, "schedule": ScheduleWish(schedule), "product_dtype": dtype}
    by_kernel = _step(gpu, 30_001, 300, **options)
    monkeypatch.setattr(tiles, "unavailable", lambda device: "switched off")
    in_torch = _step(gpu, 30_001, 300, **options)
    # Derivatives are rounded to the products' type; one that lies between two may fall either way.
    rounding = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    for found, expected in zip(by_kernel[:3], in_torch[:3], strict=True):
        error = (found - expected).abs().max() / expected.abs().max()
        assert error < 1e-5 + rounding


def test_class_tiles_make_no_logits(gpu: torch.device) -> None:
    num_classes, rows, tile = 400_000, 1024, 8192
    schedule = ScheduleWish("class_tiles", tile_classes=tile)
    options: dict[str, Any] = {"schedule": schedule, "product_dtype": torch.bfloat16}
    _step(gpu, num_classes, rows, **options)  # tunes
    peak_bytes = _step(gpu, num_classes, rows, **options)[3]
    features = 8 * 4 * rows * SIZE
    a_tile = tile * (4 * 4 * SIZE + 2 * rows)
    norms = 4 * num_classes
    partial_sums = 512 * 4 * rows
    assert peak_bytes < 1.5 * (features + a_tile + norms + partial_sums)
    assert peak_bytes < 0.1 * 4 * num_classes * rows
