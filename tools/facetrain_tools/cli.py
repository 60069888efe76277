"""The `facetrain` command: `facetrain train|data|eval|export|bench|plan|horovod|doctor ...`.

A command is a function (arguments, prog) -> exit code in a module of its own, imported when called.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

from facetrain.errors import EXIT_BAD_INPUT, bad_input_message
from facetrain.interrupts import interrupts_end_at_once

COMMANDS = {
    "train": ("facetrain_tools.train", "run a training recipe: quickstart, faces, lfw"),
    "data": ("facetrain_tools.data", "make, look at, convert and clean sets of faces"),
    "eval": (
        "facetrain_tools.eval",
        "evaluate a model: pairs, IJB, identification, all pairs; thresholds",
    ),
    "export": ("facetrain_tools.export", "write a model as ONNX, its thresholds in it"),
    "bench": (
        "facetrain_tools.bench",
        "measure: how fast faces are read, what this machine can do",
    ),
    "plan": ("facetrain_tools.plan", "plan a recipe's memory before training: memory"),
    "horovod": ("facetrain_tools.horovod", "build Horovod, the second communication engine"),
    "doctor": ("facetrain_tools.doctor", "check this machine and say what to do"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code, 2 for bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # What is wrong with an image we say ourselves.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return run(arguments)
        finally:  # also where --help exits
            sys.stdout.flush()
    except BrokenPipeError:  # who read the output, such as `head`, has seen enough
        _discard_output()
        return 0
    except OSError as error:  # where the output goes to may take no more
        message = bad_input_message(error)
        if message is None:
            raise
        _discard_output()
        print(f"error: {message}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(arguments: Sequence[str]) -> int:
    """As `main`, with the arguments given."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    if name == "--version":
        from importlib.metadata import version

        print(f"facetrain {version('facetrain')}")
        return 0
    if name not in COMMANDS:
        print(
            f"error: facetrain {name}: no such command; use one of {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    with interrupts_end_at_once():
        command = importlib.import_module(COMMANDS[name][0])
    code: int = command.main(rest)
    return code


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: facetrain COMMAND ... (each with --help), or facetrain --version",
            "",
            *lines,
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
