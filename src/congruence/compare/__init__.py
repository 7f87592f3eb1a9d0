"""Compare spaces with chance: similarity, layers, matching pairs, the pairing itself, drift, and rows' origin."""

__all__ = ["matching", "pairing", "spaces"]
