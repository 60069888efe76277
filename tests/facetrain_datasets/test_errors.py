from __future__ import annotations

import pickle

from facetrain_datasets.errors import DatasetError


def test_message_is_one_printable_line() -> None:
    error = DatasetError("a\nb\x1b[31m\udcff\u2028 名前.jpg: cut")
    assert str(error) == r"a\nb\x1b[31m\udcff\u2028 名前.jpg: cut"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
