"""Are two embedding spaces alike, and by more than chance? Spaces, layers, matching pairs, and the pairing itself."""

__all__ = ["layers", "matching", "pairing", "spaces"]
