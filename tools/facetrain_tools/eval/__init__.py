"""`facetrain eval ACTION ...`: how good a model is."""

from __future__ import annotations

from collections.abc import Sequence

from facetrain_tools.actions import module_action, run_action

ACTIONS = {
    "verification": module_action(
        "facetrain_tools.eval.verification",
        "--model FILE --data DIR --pairs FILE [flags]",
        "pairs of an LFW pair list",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    return run_action("eval", ACTIONS, arguments)
