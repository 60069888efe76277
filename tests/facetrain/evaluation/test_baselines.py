"""Raw pixels with PCA against a singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from facetrain.embedder import embed_images
from facetrain.errors import FacetrainError
from facetrain.evaluation.baselines import PixelPca
from facetrain.preprocessing import Preprocessing

SMALL = Preprocessing(image_size=16)  # 4x4 cells


def images(num: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(num)]


def slow_cells(image: np.ndarray) -> np.ndarray:
    grey = image.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    cells = np.array(
        [grey[y : y + 4, x : x + 4].mean() for y in range(0, 16, 4) for x in range(0, 16, 4)]
    )
    return (cells - cells.mean()) / cells.std(ddof=1)


@pytest.mark.parametrize("whiten", [False, True])
def test_projection_equals_a_singular_value_decomposition(whiten: bool) -> None:
    train = images(300)  # more than one batch
    pca = PixelPca.fit(iter(train), 5, whiten=whiten, preprocessing=SMALL)
    cells = np.array([slow_cells(image) for image in train])
    centred = cells - cells.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    expected = centred @ directions[:5].T
    if whiten:
        expected /= singular[:5] / np.sqrt(len(train) - 1)
    result = embed_images(pca, train)
    assert result.dtype == np.float32
    # A component's sign is arbitrary.
    np.testing.assert_allclose(np.abs(result), np.abs(expected), atol=2e-3)
    assert pca.embedding_size == 5


def test_brightness_and_contrast_do_not_count() -> None:
    pca = PixelPca.fit(images(40), 8, preprocessing=SMALL)
    image = torch.from_numpy(images(1)[0]).permute(2, 0, 1)[None] // 4
    np.testing.assert_allclose(pca.embed(image), pca.embed(image * 2 + 50), atol=1e-4)


def test_image_of_one_colour_is_finite() -> None:
    pca = PixelPca.fit(images(40), 8, preprocessing=SMALL)
    assert np.isfinite(pca.embed(torch.full((1, 3, 16, 16), 9, dtype=torch.uint8))).all()


def test_describe_says_what_it_is() -> None:
    text = PixelPca.fit(images(40), 8, preprocessing=SMALL).describe()
    assert text == "raw pixels (4x4 grey) with PCA to 8, whitened"


@pytest.mark.parametrize(("num_images", "num_components"), [(5, 5), (40, 17), (40, 0)])
def test_more_components_than_data_are_refused(num_images: int, num_components: int) -> None:
    with pytest.raises(FacetrainError, match=f"num_components {num_components}: must be 1 to"):
        PixelPca.fit(images(num_images), num_components, preprocessing=SMALL)


def test_no_images_are_refused() -> None:
    with pytest.raises(FacetrainError, match="no training images"):
        PixelPca.fit([], 4)
