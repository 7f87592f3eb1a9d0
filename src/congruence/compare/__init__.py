"""Compare embedding spaces with chance: similarity of spaces and layers, matching pairs, the pairing itself, drift, and the origin of rows."""

__all__ = ["layers", "matching", "pairing", "spaces"]
