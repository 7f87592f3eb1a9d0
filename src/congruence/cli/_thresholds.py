"""The table of translated score thresholds, printed by ``bridge`` and ``migrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from congruence.evaluation.thresholds import Translation


def print_thresholds(translated: Sequence[Translation]) -> None:
    """Print translated thresholds with their rates before and after; print nothing if there are none."""
    from congruence.cli._base import number, print_table

    if not translated:
        return
    rows = [
        [
            number(row.threshold, 4),
            number(row.value, 4),
            *(f"{rate:.2e}" for rate in (row.fpr_old, row.fpr_unchanged, row.fpr)),
            f"{row.fpr_interval[0]:.2e} … {row.fpr_interval[1]:.2e}",
            *map(number, (row.recall_old, row.recall_unchanged, row.recall)),
        ]
        for row in translated
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
