"""`python -m memopt COMMAND ...`: traces looked at and replayed under online policies."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from memopt.commands import COMMANDS
from memopt.errors import MemoptError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 for what the user can set right, said in one line."""
    parser = argparse.ArgumentParser(prog="python -m memopt", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        text = (command.__doc__ or "").splitlines()[0]
        command.add_arguments(subparsers.add_parser(name, help=text, description=text))
    options = parser.parse_args(arguments)
    try:
        COMMANDS[options.command].run(options)
        sys.stdout.flush()
    except MemoptError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
