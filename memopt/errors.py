"""The errors a user's model or budget can cause; their message is one line that says what to do."""


class MemoptError(ValueError):
    """A budget or a model that cannot be handled: the message names it and what to do."""


class BudgetTooSmallError(MemoptError):
    """Nothing that fits a budget was found.

    Attributes:
        least_bytes: the least budget that something was found for.
    """

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes
