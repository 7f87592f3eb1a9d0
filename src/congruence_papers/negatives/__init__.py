"""Hard negative captions for any captions: English ones by rules, others by a user-defined generator."""

from congruence_papers.negatives.generation import (
    KINDS,
    Generator,
    Negative,
    count,
    generate,
    sibling_negatives,
    write_negatives,
)

__all__ = ["KINDS", "Generator", "Negative", "count", "generate", "sibling_negatives", "write_negatives"]
