"""Hard negative captions for any captions: English ones by rules, others by a user-defined generator."""

from congruence_papers.negatives.generation import (
    GENERATORS,
    KINDS,
    Generator,
    Negative,
    by_rules,
    count,
    generate,
    register,
    write_negatives,
)
from congruence_papers.negatives.siblings import sibling_negatives

__all__ = [
    "GENERATORS",
    "KINDS",
    "Generator",
    "Negative",
    "by_rules",
    "count",
    "generate",
    "register",
    "sibling_negatives",
    "write_negatives",
]
