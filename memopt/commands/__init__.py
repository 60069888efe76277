"""Commands of `python -m memopt`: a file each, with `add_arguments(parser)`, `run(options)`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Protocol

from memopt.commands import plan, replay, show


class Command(Protocol):
    """A module. Its docstring's first line is its help."""

    __doc__: str | None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares its options."""

    def run(self, options: Namespace) -> None:
        """Does it, and prints. Raises MemoptError for bad input."""


COMMANDS: Mapping[str, Command] = {"show": show, "plan": plan, "replay": replay}
