"""A mistake that other options would mend."""


class Mendable(ValueError):
    """What is wrong, and the options that would be right.

    Args:
        message: what is wrong.
        **options: values that work, by option.
    """

    def __init__(self, message: str, **options: str) -> None:
        super().__init__(message)
        self.options = options
