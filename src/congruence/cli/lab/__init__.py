"""``congruence lab``: measurements and research."""

#: Commands in the order of the help, by the module that has them.
ACTIONS = {
    **{"anchors": "lab.anchors", "evaluate": "lab.evaluate", "doctor": "lab.stores", "drift": "lab.stores"},
    **{"exposure": "lab.stores", "info": "lab.machine", "plan": "lab.machine", "similarity": "lab.spaces"},
    **{"match": "lab.spaces", "shift": "lab.spaces", "frame": "lab.frame"},
}

ENTRY_POINTS = "congruence.commands"  # where other packages add commands


def command() -> None:
    """Measure models, spaces and stores; repeat the papers' experiments.

    Example: congruence lab similarity library/old-photos.parquet library/new-photos.parquet
    """
