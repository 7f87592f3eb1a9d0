"""From items to a file of vectors: what to read, how to go on after an interruption, what not to compute twice."""

from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items, open_items
from congruence.embed.run import EmbedReport, embed

__all__ = ["EmbedReport", "Items", "VectorCache", "embed", "open_items"]
