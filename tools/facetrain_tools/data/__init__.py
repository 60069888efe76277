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
        "FROM TO [--to FORMAT]",
        "from any format to any other, verified",
    ),
    "inspect": module_action(
        "facetrain_tools.data.inspect",
        "PATH [flags]",
        "identities, images, sizes, broken files",
    ),
    "dedupe": module_action(
        "facetrain_tools.data.dedupe",
        "PATH [--model FILE | --features FILE] [flags]",
        "photographs that are there more than once",
    ),
    "overlap": module_action(
        "facetrain_tools.data.overlap",
        "A B --model FILE | --features FILE --second-features FILE",
        "people who are in both of two sets",
    ),
    "clean": module_action(
        "facetrain_tools.data.clean",
        "PATH --model FILE | --features FILE [flags]",
        "wrong labels, split and merged identities, to review",
    ),
    "select": module_action(
        "facetrain_tools.data.select",
        "FROM TO --without LIST ... [--to FORMAT]",
        "a set without what reviewed lists name",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    return run_action("data", ACTIONS, arguments)
