"""``congruence lab frame``: many models in one coordinate frame."""

ACTIONS = ("fit", "add", "map")


def command() -> None:
    """Fit one coordinate frame for many models, add models, and extract maps.

    Example: congruence lab frame fit old=library/old-texts.parquet new=library/new-texts.parquet -o models.frame
    """
