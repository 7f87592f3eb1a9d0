"""Imported by the fork server: fills caches once, so that no case has to fill them again.

These are the options of commands, what scikit-learn looks up when it first checks an array, glyph shapes, and compiled
templates. None of this leaves a thread or an open file behind, which would not survive a fork.
"""

import numpy as np
import process  # noqa: F401 - and so pytest, which every fork would import to find its function

from congruence import OrthogonalMap
from congruence.plotting.look import COLOR, canvas, explain, tidy
from congruence.report.pictures import to_svg
from congruence.report.rendering import templates
from tree import walk

LETTERS = "".join(map(chr, range(32, 127))) + "–−×κμσ"


def draw(ax):
    for k in range(2):
        ax.plot([0.1, 0.5, 1.0], [k, 2.0, 1.0], color=COLOR[f"series-{k}"], label=LETTERS[8 * k : 8 * k + 8])
    ax.set_xlabel(LETTERS[16:64])
    ax.set_ylabel(LETTERS[64:])
    tidy(ax)
    explain(ax, "title")


OrthogonalMap().fit(np.eye(3), np.eye(3))
with canvas(None) as ax:
    draw(ax)
to_svg(ax.figure, "title")
for name in templates().list_templates(["html"]):
    templates().get_template(name)
for _ in walk():
    pass
