"""Memory core: tracks, plans and rematerialises the tensors of a training step.

memopt.budget(model, "4GiB")  # the training loop stays as it is
"""

from memopt.budgeted import Budget, budget
from memopt.errors import MemoptError

__all__ = ["Budget", "MemoptError", "budget"]
