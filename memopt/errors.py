"""The error a user's model or budget can cause; its message is one line that says what to do."""


class MemoptError(ValueError):
    """A budget or a model that cannot be handled: the message names it and what to do."""
