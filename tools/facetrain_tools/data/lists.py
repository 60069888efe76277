"""Lists for review: CSV files that a person reads, edits and gives back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from facetrain.report import write_atomically


def write_list(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a CSV file in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
