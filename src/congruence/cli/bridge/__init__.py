"""``congruence bridge``: keep an index as it is, and search it with another model's queries."""

ACTIONS = ("search", "evaluate", "serve", "export")


def command() -> None:
    """Keep an index as it is, and search it with a new model's queries.

    Example: congruence bridge search back --queries library/new-texts.parquet --index library/old-photos.parquet
    """
