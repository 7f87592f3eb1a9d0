"""Embed items into a file of vectors: reading, resuming after an interruption, and caching."""

from congruence.embed.cache import VectorCache
from congruence.embed.inputs import Items, open_items
from congruence.embed.run import EmbedReport, embed

__all__ = ["EmbedReport", "Items", "VectorCache", "embed", "open_items"]
