"""The table of translated score thresholds, printed by ``bridge`` and ``migrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from congruence.evaluation.thresholds import Translation

__all__ = ["print_thresholds"]


def print_thresholds(translated: Sequence[Translation]) -> None:
    """Print translated thresholds with their rates before and after; print nothing if there are none."""
    from congruence.cli._base import number, print_table

    if not translated:
        return
    rows = [
        [
            number(one.threshold, 4),
            number(one.value, 4),
            *(f"{rate:.2e}" for rate in (one.fpr_old, one.fpr_unchanged, one.fpr)),
            f"{one.fpr_interval[0]:.2e} … {one.fpr_interval[1]:.2e}",
            *map(number, (one.recall_old, one.recall_unchanged, one.recall)),
        ]
        for one in translated
    ]
    columns = [
        "threshold",
        "becomes",
        "FPR, old",
        "FPR, unchanged",
        "FPR",
        "95 %",
        "recall, old",
        "recall, unchanged",
        "recall",
    ]
    print_table("thresholds, cross-validated over queries", columns, rows)
