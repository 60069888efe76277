"""Makes the index of a set in shards, one image at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from facetrain_datasets.formats.class_labels import ClassLabels
from facetrain_datasets.image_index import ImageIndex
from facetrain_datasets.packed_strings import StringPacker


class IndexBuilder:
    """Images in the order they are added.

    Args:
        shards: the data files.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        self._paths = shards
        self._labels, self._names = ClassLabels(), StringPacker()
        self._offsets, self._lengths, self._shards = array("q"), array("q"), array("i")

    def add(self, shard: int, name: str, label: int | str, offset: int, length: int) -> None:
        """Takes an image; offset and length as `ImageIndex` has them.

        Raises:
            DatasetError: the label does not go with those before.
        """
        self._labels.add(label, f"{self._paths[shard]}: {name}")
        self._names.append(name)
        self._offsets.append(offset)
        self._lengths.append(length)
        self._shards.append(shard)

    def finish(self, note: str = "") -> ImageIndex:
        """The index.

        Raises:
            DatasetError: no image, or labels that number no classes.
        """
        labels, identities = self._labels.finish(self._paths[0])
        return ImageIndex(
            identities=identities,
            labels=labels,
            names=self._names.pack(),
            offsets=np.frombuffer(self._offsets, np.int64),
            lengths=np.frombuffer(self._lengths, np.int64),
            shards=np.frombuffer(self._shards, np.int32),
            note=note,
        )
