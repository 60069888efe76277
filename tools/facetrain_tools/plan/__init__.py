"""`facetrain plan RECIPE ...`, and `facetrain plan memory RECIPE ...`: one module each."""

from __future__ import annotations

from collections.abc import Sequence

from facetrain.command import one_line_errors

_USAGE = """usage: facetrain plan RECIPE --gpus 256 --device v100-32g --ids 10_000_000 [flags]
       facetrain plan memory RECIPE [--memory 300MiB] [flags]

  RECIPE         how a step is partitioned over devices, and what it keeps: table, page, plan.json
  memory RECIPE  budgets of the backbone's step on one device, and their cost
each with --help"""


def main(arguments: Sequence[str]) -> int:
    """Plans a step, or one device's memory; the exit code, 2 for bad input."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return 0

    def run() -> int:
        if arguments[0] == "memory":
            from facetrain_tools.plan import memory

            return memory.main(arguments[1:])
        from facetrain_tools.plan import step

        return step.main(arguments)

    return one_line_errors(run)
