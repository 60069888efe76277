"""Runs a schedule in training: saved-tensor hooks by ordinal, and recorded operators run again."""

from memopt.execute.planned_pass import PROBE_BYTES, PlannedPass
from memopt.execute.program import Program
from memopt.execute.splits import find_splits

__all__ = ["PROBE_BYTES", "PlannedPass", "Program", "find_splits"]
