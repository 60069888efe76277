"""The errors a user can cause and mend.

The command line prints the message of a `FacetrainError` (or of its like in our other packages, or
the system's about a file) as one line and exits with code 2; every other exception is a defect of
ours and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from facetrain.printable import one_line

EXIT_BAD_INPUT = 2
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Only writing fails so, also of a file that the system does not name."""
_LOADER_DIED = "DataLoader worker (pid"  # torch says so wherever the process is at that moment
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})


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

    What the system says of a named file is bad input too (it is absent, forbidden, ...), and so is
    a disk or a memory that takes no more, or a process of ours that the system has killed.
    """
    said = _message(error)
    return None if said is None else one_line(said)


def _message(error: Exception) -> str | None:
    if isinstance(error, bad_input_errors()):
        return str(error)
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"not enough memory{detail}; give less data at once, or free some"
    if isinstance(error, RuntimeError) and _LOADER_DIED in str(error):
        return (
            f"a loader process was killed ({str(error).splitlines()[0].strip()}): where memory "
            "runs out, give fewer --num-workers"
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in _NO_ROOM:
        what = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        return f"{what}; free space or choose another folder with --out"
    if error.filename is None:
        return None
    if error.errno in _FORBIDDEN:
        return (
            f"{error.filename}: {error.strerror}; change its permissions or, where it is to be "
            "written, choose another folder with --out"
        )
    return f"{error.filename}: {error.strerror}; check the path"
