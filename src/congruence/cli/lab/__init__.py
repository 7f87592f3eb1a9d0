"""``congruence lab``: measurements and research."""

ACTIONS = (
    *("anchors", "evaluate", "doctor", "drift", "exposure", "info", "plan"),
    *("similarity", "match", "shift", "frame"),
)

#: Where other packages add commands.
ENTRY_POINTS = "congruence.commands"


def command() -> None:
    """Measure models, spaces and stores; repeat the papers' experiments.

    Example: congruence lab similarity library/old-photos.parquet library/new-photos.parquet
    """
