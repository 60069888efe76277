from __future__ import annotations

from collections.abc import Callable

import pytest

from facetrain_datasets.errors import DatasetError
from facetrain_datasets.selected_faces import select_identities


def test_all_is_the_source_itself(make_source: Callable) -> None:
    source = make_source(7)
    assert select_identities(source) is source


def test_identities_are_left_out_and_the_rest_numbered_anew(make_source: Callable) -> None:
    source = make_source(10)  # persons 0, 1, 2 have three images, 3 has one
    chosen = select_identities(source, min_images=2, exclude=["person1", "nobody"])
    assert chosen.identities == ["person0", "person2"]
    assert chosen.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [chosen.describe(index) for index in (0, 3)] == ["image0", "image6"]
    assert chosen.read(3) == source.read(6)
    assert len(chosen) == 6


def test_nothing_left_is_an_error_that_counts(make_source: Callable) -> None:
    with pytest.raises(DatasetError, match=r"no identity left of 2 \(1 excluded .*1 with fewer"):
        select_identities(make_source(4), min_images=2, exclude=["person0"])


def test_min_images_below_one_is_refused(make_source: Callable) -> None:
    with pytest.raises(DatasetError, match="min_images is 0"):
        select_identities(make_source(3), min_images=0)
