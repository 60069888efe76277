"""`facetrain data ACTION ...`: make, look at, convert and clean sets of faces."""

from __future__ import annotations

from collections.abc import Sequence

from facetrain_tools.actions import module_action, run_action

ACTIONS = {
    "prepare": module_action(
        "facetrain_tools.data.prepare",
        "PHOTOS OUT --detector FILE [flags]",
        "photos to aligned faces",
    ),
    "convert": module_action(
        "facetrain_tools.data.convert",
        "FROM TO [--format NAME]",
        "from any format to any other, verified",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    return run_action("data", ACTIONS, arguments)
