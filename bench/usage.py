"""What a user typed and cannot have: one exception type, one sentence."""


class UsageError(ValueError):
    """A value from the user that cannot be used.

    Its text is one sentence with the problem, the value, the option and the remedy, such as
    `invalid size '12X' for --min-bytes (examples: 8, 1K, 64M, 4G)`. The four parts are the exception's `args`, so
    it can be sent from the rank that found it to the others and still read the same.

    option: the option as it is typed (`--min-bytes`), or `PRIMITIVE`, `DIR` for what has no dashes.
    value: what was given.
    remedy: what would do instead.
    problem: what is wrong with the value, in front of it.
    """

    def __init__(self, option: str, value: object, remedy: str, problem: str = "invalid value"):
        super().__init__(option, value, remedy, problem)

    def __str__(self) -> str:
        option, value, remedy, problem = self.args
        return f"{problem} {str(value)!r} for {option} ({remedy})"
