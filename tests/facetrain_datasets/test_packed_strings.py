from __future__ import annotations

import pickle

import pytest

from facetrain_datasets.packed_strings import PackedStrings

NAMES = ["Ada", "", "Ålan", "名前", "\udcff"]


def test_packed_strings_are_the_strings() -> None:
    packed = PackedStrings.of(iter(NAMES))
    assert list(packed) == NAMES
    assert packed[-1] == NAMES[-1]
    assert packed[1:3] == ("", "Ålan")
    assert "Ada" in packed
    with pytest.raises(IndexError):
        packed[5]


def test_equal_to_any_sequence_of_the_same_strings() -> None:
    packed = PackedStrings.of(NAMES)
    assert packed == NAMES
    assert packed == tuple(NAMES)
    assert packed == PackedStrings.of(NAMES)
    assert packed != NAMES[:-1]
    assert packed != PackedStrings.of(["A", "da", "Ålan", "名前", "\udcff"])
    assert packed != 3


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100, 101, 1234])
def test_numbers_sort_as_strings_as_they_do_as_numbers(count: int) -> None:
    packed = PackedStrings.numbered(count)
    width = len(str(max(count - 1, 0)))
    assert list(packed) == [f"{number:0{width}d}" for number in range(count)]


def test_pickled_as_two_arrays() -> None:
    packed = PackedStrings.of(NAMES * 1000)
    data = pickle.dumps(packed)
    assert pickle.loads(data) == packed
    assert len(data) < packed.data.nbytes + packed.ends.nbytes + 500
