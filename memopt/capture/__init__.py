"""Records one training iteration as an `OpGraph`, running it or under fake tensors."""

from memopt.capture.costs import CostTable
from memopt.capture.fake import fake_copy, record_fake
from memopt.capture.pattern import fingerprint, settled
from memopt.capture.recorder import record
from memopt.capture.recording import Call, Recording, SavedTensor, TensorView, UnpackGroup

__all__ = [
    "Call",
    "CostTable",
    "Recording",
    "SavedTensor",
    "TensorView",
    "UnpackGroup",
    "fake_copy",
    "fingerprint",
    "record",
    "record_fake",
    "settled",
]
