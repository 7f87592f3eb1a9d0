"""``congruence bridge``: keep an index as it is, and search it with another model's queries."""

ACTIONS = ("search", "evaluate", "serve", "export")


def command() -> None:
    """Keep an index as it is, and search it with a new model's queries."""
