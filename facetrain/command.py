"""From a command line to a running recipe: flags, one-line errors, local processes.

A recipe ends with::

    if __name__ == "__main__":
        raise SystemExit(run_recipe(main, Flags, __file__))
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import tyro

from facetrain.config import RunConfig
from facetrain.errors import (
    EXIT_BAD_INPUT,
    FacetrainError,
    TrainingStopped,
    bad_input_message,
)
from facetrain.interrupts import interrupts_end_at_once

EXIT_FAILURE = 1
EXIT_STOPPED = 130
_COMMAND_VARIABLE = "FACETRAIN_COMMAND"


class RecipeFlags(Protocol):
    """Flags of a recipe: whatever it needs, and the run it configures."""

    @property
    def run(self) -> RunConfig: ...


FlagsT = TypeVar("FlagsT")
RecipeFlagsT = TypeVar("RecipeFlagsT", bound=RecipeFlags)


def run_recipe(
    main: Callable[[RecipeFlagsT], None],
    flags_type: type[RecipeFlagsT],
    script: str,
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
    rank_command: Sequence[str] | None = None,
) -> int:
    """Run a recipe's `main`, in this process or in as many as its flags ask for.

    Args:
        main: the recipe; called in each rank with its flags.
        flags_type: dataclass that becomes the flags; its field `run` is the `RunConfig`.
        script: the recipe's file.
        arguments: default: the command line's.
        prog: name of the command in its help; default: the script's.
        rank_command: starts a process of several, `arguments` follow; default: the script.

    Returns:
        Exit code: 0, 2 for bad input, 130 when stopped, 1 otherwise.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)

    def run() -> int:
        from facetrain.distributed.launch import launch
        from facetrain.distributed.world import World

        flags = parse_flags(flags_type, arguments, prog or Path(script).name)
        if flags.run.name is None:
            # A copied recipe so gets runs of its own.
            named = dataclasses.replace(flags.run, name=Path(script).stem)
            flags = dataclasses.replace(flags, run=named)  # type: ignore[type-var]
        flags = for_its_margin(flags, arguments)
        flags.run.check()
        if not World.from_environment().launched and flags.run.num_processes > 1:
            return launch(
                [*(rank_command or (sys.executable, script)), *arguments],
                flags.run.num_processes,
                {_COMMAND_VARIABLE: command_line()},
            )
        main(flags)
        return 0

    return one_line_errors(run)


def command_line() -> str:
    """What the user typed to start this process or its launcher, for reports."""
    typed = os.environ.get(_COMMAND_VARIABLE)
    if typed is not None:
        return typed
    program, *arguments = sys.argv
    started = ["python", program] if program.endswith(".py") else [Path(program).name]
    return shlex.join([*started, *arguments])


def parse_flags(flags_type: type[FlagsT], arguments: Sequence[str], prog: str) -> FlagsT:
    """The flags as a dataclass; `--help` prints them and exits.

    Raises:
        FacetrainError: unknown, missing or unreadable flags.
    """
    said = io.StringIO()
    columns = os.environ.get("COLUMNS")
    # tyro draws a box as wide as the terminal; a wide one keeps its sentences whole.
    width = columns if {"-h", "--help"} & set(arguments) else "500"
    os.environ["COLUMNS"] = width or str(shutil.get_terminal_size().columns)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                tyro.conf.OmitArgPrefixes[flags_type],  # type: ignore[misc, valid-type]
                args=list(arguments),
                prog=prog,
            )
    except SystemExit as error:
        if error.code == 0:
            raise
        raise FacetrainError(f"{_one_line(said.getvalue())}; see {prog} --help") from None
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def for_its_margin(flags: RecipeFlagsT, arguments: Sequence[str]) -> RecipeFlagsT:
    """The flags, without values that the recipe chose for another margin than the one asked for.

    What `arguments` themselves give stays; what is dropped becomes the paper's.
    """
    fields = {field.name: field for field in dataclasses.fields(flags)}  # type: ignore[arg-type]
    factory = fields["run"].default_factory
    head = flags.run.head
    if factory is dataclasses.MISSING or factory().head.margin == head.margin:
        return flags
    typed = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if "--margin-value" not in typed:
        head = dataclasses.replace(head, margin_value=None)
    if "--margin-options" not in typed:
        head = dataclasses.replace(head, margin_options=())
    run = dataclasses.replace(flags.run, head=head)
    return dataclasses.replace(flags, run=run)  # type: ignore[type-var]


def one_line_errors(run: Callable[[], int]) -> int:
    """`run`'s exit code; bad input becomes one line on stderr and exit code 2."""
    with interrupts_end_at_once():
        from facetrain.distributed.communicator import PeerLostError
        from facetrain.distributed.launch import report_error

    try:
        return run()
    except ImportError as error:
        if ".so" not in str(error):
            raise
        report_error(f"error: a system library is missing ({error}); run `facetrain doctor`")
        return _leave(EXIT_BAD_INPUT)
    except PeerLostError as error:
        report_error(f"error: {error}", secondary=True)
        return _leave(EXIT_FAILURE)
    except TrainingStopped:
        return EXIT_STOPPED
    except KeyboardInterrupt:
        return _leave(EXIT_STOPPED)
    except Exception as error:
        message = bad_input_message(error)
        if message is None:
            raise
        report_error(f"error: {message}")
        return _leave(EXIT_BAD_INPUT)


def _leave(code: int) -> int:
    """The exit code; in a world of several, leave at once: peers may wait in a collective."""
    from facetrain.distributed.world import World

    try:
        alone = World.from_environment().world_size == 1
    except FacetrainError:  # without a place among others, it has not met them
        alone = True
    if not alone:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _one_line(box: str) -> str:
    """tyro's boxed message as one sentence, without the help text it repeats."""
    lines = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.splitlines()]
    lines = [line for line in lines if line]
    body = []
    for line in lines[1:] or lines:
        if line.startswith(("For full helptext", "Argument helptext", "Arguments similar")):
            break
        body.append(line)
    return re.sub(r"\s+", " ", " ".join(body)).rstrip(". ")
