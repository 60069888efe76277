"""The errors a user can cause and mend.

The command line prints the message of a `FacetrainError` as one line and exits with code 2; every
other exception is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_BAD_INPUT = 2


class FacetrainError(ValueError):
    """Bad input: the message names what is wrong, where, and what to do."""


class ConfigError(FacetrainError):
    """One or more configuration fields hold values that cannot be used.

    Args:
        problems: one line per field, each naming field, value and what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))
