"""What a trained network must beat: principal components of the raw pixels ("eigenfaces").

Turk & Pentland, "Eigenfaces for Recognition", 1991. Images are averaged over square cells to grey,
scaled to zero mean and unit deviation each (so that brightness and contrast do not count), and
projected onto the directions of largest variance among the training images.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from facetrain.errors import FacetrainError
from facetrain.preprocessing import Preprocessing

_CELL = 4  # 112x112 pixels become 28x28 cells
_BATCH = 256
_GREY = torch.tensor([0.299, 0.587, 0.114])  # ITU-R BT.601 luma


@dataclass(frozen=True, eq=False)
class PixelPca:
    """Raw pixels, projected onto principal components; an `Embedder`.

    Attributes:
        mean: of the cells of training images, float32 [P].
        components: float32 [P, D], orthogonal; columns of length 1, or whitened.
        whitened: whether every component has variance 1 on the training images.
        preprocessing: only its image size counts.
    """

    mean: np.ndarray
    components: np.ndarray
    whitened: bool
    preprocessing: Preprocessing

    @classmethod
    def fit(
        cls,
        images: Iterable[np.ndarray],
        num_components: int = 128,
        *,
        whiten: bool = True,
        preprocessing: Preprocessing | None = None,
    ) -> PixelPca:
        """Components of training images, uint8 RGB [H, W, 3] each, read once.

        Raises:
            FacetrainError: fewer images than components, or fewer cells.
        """
        preprocessing = preprocessing or Preprocessing()
        parts = [_cells(batch, preprocessing) for batch in _batches(images)]
        if not parts:
            raise FacetrainError("raw pixels with PCA: no training images given")
        cells = np.concatenate(parts)
        if not 1 <= num_components <= min(len(cells) - 1, cells.shape[1]):
            raise FacetrainError(
                f"num_components {num_components}: must be 1 to "
                f"{min(len(cells) - 1, cells.shape[1])} for {len(cells)} images of "
                f"{cells.shape[1]} cells"
            )
        mean = cells.mean(axis=0, dtype=np.float64)
        centred = cells - mean.astype(np.float32)
        covariance = (centred.T @ centred).astype(np.float64) / (len(cells) - 1)
        variances, directions = np.linalg.eigh(covariance)  # ascending
        variances = variances[::-1][:num_components]
        components = directions[:, ::-1][:, :num_components]
        if whiten:
            # Directions without variance would be divided by rounding errors.
            components = components / np.sqrt(np.maximum(variances, 1e-6 * variances[0]))
        return cls(mean.astype(np.float32), components.astype(np.float32), whiten, preprocessing)

    @property
    def embedding_size(self) -> int:
        return self.components.shape[1]

    def describe(self) -> str:
        side = self.preprocessing.image_size // _CELL
        kind = ", whitened" if self.whitened else ""
        return f"raw pixels ({side}x{side} grey) with PCA to {self.embedding_size}{kind}"

    def embed(self, images: Tensor) -> np.ndarray:
        return (_cells(images, self.preprocessing) - self.mean) @ self.components


def _cells(images: Tensor, preprocessing: Preprocessing) -> np.ndarray:
    """Grey cells float32 [B, P], standardised per image, of uint8 RGB images [B, 3, H, W]."""
    pixels = Preprocessing(image_size=preprocessing.image_size).normalise(images)
    grey = torch.einsum("bchw,c->bhw", pixels, _GREY)
    cells = torch.nn.functional.avg_pool2d(grey[:, None], _CELL).flatten(1)
    centred = cells - cells.mean(dim=1, keepdim=True)
    # An image of one colour has no deviation: it stays zero.
    return (centred / centred.std(dim=1, keepdim=True).clamp_min(1e-6)).numpy()


def _batches(images: Iterable[np.ndarray]) -> Iterable[Tensor]:
    batch: list[np.ndarray] = []
    for image in images:
        batch.append(image)
        if len(batch) == _BATCH:
            yield torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
            batch = []
    if batch:
        yield torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
