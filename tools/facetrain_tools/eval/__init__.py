"""`facetrain eval ACTION ...`: how good a model is."""

from __future__ import annotations

from collections.abc import Sequence

from facetrain_tools.actions import module_action, run_action

ACTIONS = {
    name: module_action(f"facetrain_tools.eval.{name.replace('-', '_')}", arguments, what)
    for name, arguments, what in (
        (
            "verification",
            "--model FILE --pairs FILE [--data DIR] [flags]",
            "listed pairs: LFW lists, tables, .bin sets",
        ),
        (
            "ijb",
            "--model FILE --meta DIR --images DIR [flags]",
            "IJB-B and IJB-C, 1:1 and 1:N",
        ),
        (
            "identification",
            "--model FILE --gallery DATA --probes DATA [flags]",
            "search in a gallery, with distractors",
        ),
        (
            "all-pairs",
            "--model FILE --data DATA [flags]",
            "every image against every other, to FAR 1e-6",
        ),
        (
            "calibrate",
            "--model FILE --data DATA [--to FILE] [flags]",
            "thresholds per FAR, to a file",
        ),
        ("compare", "A B [flags]", "two results side by side"),
    )
}


def main(arguments: Sequence[str]) -> int:
    """Run the action named first; the rest are its flags."""
    return run_action("eval", ACTIONS, arguments)
