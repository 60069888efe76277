"""Rematerialisation by whole blocks: a chain of segments, each kept or recomputed.

    profile = profile_segments(segments, example_images)
    plan = plan_segments(profile, parse_bytes("256MiB"))
    embeddings = SegmentRunner(segments, plan)(images)

`profile_segments` measures every segment alone, `plan_segments` picks by dynamic programming which
to recompute (pure, on plain data), and `SegmentRunner` runs the forward pass so.
"""

from memopt.blocks.measure import profile_segments
from memopt.blocks.plan import SegmentPlan, plan_segments, smallest_budget_bytes
from memopt.blocks.profile import ChainProfile, PassBytes, SegmentProfile
from memopt.blocks.run import SegmentRunner
from memopt.blocks.segment import Segment

__all__ = [
    "ChainProfile",
    "PassBytes",
    "Segment",
    "SegmentPlan",
    "SegmentProfile",
    "SegmentRunner",
    "plan_segments",
    "profile_segments",
    "smallest_budget_bytes",
]
