"""``congruence lab frame``: many models in one coordinate frame."""

ACTIONS = ("fit", "add", "map")


def command() -> None:
    """Fit one coordinate frame for many models, add models, and extract maps."""
