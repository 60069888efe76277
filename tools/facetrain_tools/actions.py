"""Commands of the form `facetrain COMMAND ACTION [flags]`: finding the action, usage, errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from facetrain.command import one_line_errors
from facetrain.errors import FacetrainError
from facetrain.interrupts import interrupts_end_at_once


class Action(NamedTuple):
    """One thing a command does.

    Attributes:
        run: from the arguments behind the action's name to the exit code.
        arguments: as shown in the usage.
        what: a few words.
    """

    run: Callable[[Sequence[str]], int]
    arguments: str
    what: str


def module_action(module: str, arguments: str, what: str) -> Action:
    """An action that is the `main` of a module of its own, imported when it runs."""

    def run(rest: Sequence[str]) -> int:
        with interrupts_end_at_once():
            action = importlib.import_module(module)
        code: int = action.main(rest)
        return code

    return Action(run, arguments, what)


def run_action(command: str, actions: Mapping[str, Action], arguments: Sequence[str]) -> int:
    """Runs the action named first; the exit code, 2 for bad input."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(command, actions))
        return 0
    name, *rest = arguments

    def run() -> int:
        if name not in actions:
            raise FacetrainError(
                f"facetrain {command} {name}: no such action; use {' or '.join(actions)}"
            )
        return actions[name].run(rest)

    return one_line_errors(run)


def usage(command: str, actions: Mapping[str, Action]) -> str:
    """Each action with its arguments, then what each does."""
    width = max(map(len, actions))
    heads = [
        f"{'usage:' if index == 0 else '      '} facetrain {command} {name} {action.arguments}"
        for index, (name, action) in enumerate(actions.items())
    ]
    lines = [f"  {name:<{width}}  {action.what}" for name, action in actions.items()]
    return "\n".join([*heads, "", *lines])
