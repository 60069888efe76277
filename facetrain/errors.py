"""The errors a user can cause and mend.

The command line prints the message of a `FacetrainError` (or of its like in our other packages, or
the system's about a file) as one line and exits with code 2; every other exception is a defect of
ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_BAD_INPUT = 2


class FacetrainError(ValueError):
    """Bad input: the message names what is wrong, where, and what to do."""


class TrainingStopped(Exception):  # noqa: N818 - no error
    """Training was asked to stop and has saved a checkpoint."""


class ConfigError(FacetrainError):
    """One or more configuration fields hold values that cannot be used.

    Args:
        problems: one line per field, each naming field, value and what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def bad_input_errors() -> tuple[type[Exception], ...]:
    """What each package raises for bad input; no other ValueError is one."""
    from facetrain.memory import MemoptError
    from facetrain_datasets.errors import DatasetError

    return FacetrainError, DatasetError, MemoptError


def bad_input_message(error: Exception) -> str | None:
    """The line that tells a user of `error`; None for a defect, which keeps its traceback.

    What the system says of a named file is bad input too: the file is absent, forbidden, ...
    """
    if isinstance(error, bad_input_errors()):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"{error.filename}: {error.strerror}; check the path, its permissions and the free "
            "space"
        )
    return None
