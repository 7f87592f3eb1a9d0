"""The result of an evaluation, its lines, and the classes of items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence._utils.ids import id_texts
from congruence._utils.validation import shorten
from congruence.embeddings import Embeddings
from congruence.errors import InputError
from congruence.maps import Map, OrthogonalMap
from congruence.metrics import Hubness, ensemble_prompts
from congruence.metrics.hubness import as_hubness

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from congruence._utils.typing import RowsLike


@dataclass(frozen=True)
class Score:
    """One line of an evaluation.

    Attributes
    ----------
    metric : str
        ``"retrieval"``, ``"retrieval_other"``, ``"zero_shot"``, ``"zero_shot_centered"``, ``"cosine"``, ``"distance"``; for joint-space
        maps ``"recall_at_1"``, ``"mean_recall_at_1"``, ``"recall_at_5"``, ``"recall_at_10"``, ``"zero_shot"``, ``"cosine"``. If retrieval uses
        centering or a correction for hubs, the name ends in that variant's suffix (:class:`Ranking`).
    query, against : str
        What is compared with what, e.g. ``"aligned image"`` with ``"target text"``; for joint-space maps ``"aligned source image"``
        with ``"aligned target text"``.
    after : float
        Score with the map.
    before : float or None
        Score with the unmapped source vectors; None if the widths differ or the comparison is not meaningful.
    source, target : float or None
        Scores of the source model alone and of the target model alone; the target's is the oracle.
    n : int
        Number of items (for a joint-space map: pairs, or queries).
    chance : float or None
        Score of neighbors drawn at random, for retrieval and classification.
    control_constant, control_random_rotation : float or None
        For cosine and distance: the score with every mapped row replaced by the target's mean, and with a random rotation about the
        correct means (:mod:`congruence.evaluation.controls`).
    """

    metric: str
    query: str
    against: str
    after: float
    before: float | None = None
    source: float | None = None
    target: float | None = None
    n: int = 0
    chance: float | None = None
    control_constant: float | None = None
    control_random_rotation: float | None = None


@dataclass(frozen=True)
class Ranking:
    """A variant of retrieval: with or without centering and a correction for hubs.

    Attributes
    ----------
    center : bool
        Whether each side is centered at the mean of its own evaluated rows.
    hubness : Hubness or None
        Correction for hubs, computed from the evaluated queries.
    """

    center: bool = False
    hubness: Hubness | None = None

    @property
    def suffix(self) -> str:
        """Suffix of the measure's name: empty, ``"_centered"``, ``"_csls"``, and so on."""
        return "_centered" * self.center + (f"_{self.hubness.name}" if self.hubness else "")

    @property
    def notes(self) -> list[str]:
        """Notes on the rows from which its means and its query bank are computed."""
        notes = (
            ["Centered retrieval subtracts the mean of the evaluated rows, on each side its own."]
            if self.center
            else []
        )
        if self.hubness:
            notes.append(
                f"Scores corrected by {self.hubness.name} use the evaluated queries as the bank: they are those of queries that arrive together (transductive)."
            )
        return notes

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a retrieval measure."""
        return {"center": self.center, "hubness": self.hubness}


def rankings(center: bool, hubness: str | Hubness | None) -> list[Ranking]:
    """Return the requested search variants: plain, centered, corrected, and both.

    Raises
    ------
    ParameterError
        If the correction is unknown.
    """
    correction = as_hubness(hubness)
    corrections = (None,) if correction is None else (None, correction)
    return [Ranking(centered, kind) for kind in corrections for centered in ((False, True) if center else (False,))]


@dataclass(frozen=True)
class Scores:
    """Result of :func:`evaluate`: plain data, ready for a table, JSON or a report.

    Attributes
    ----------
    rows : list of Score
        Retrieval and classification first, then cosines and distances with their controls.
    covered_share : dict of str to float
        By modality, the mean share of the source vectors' variance (norm²) in directions that the anchors cover.
    notes : list of str
        Notes a reader needs to interpret the numbers.
    """

    rows: list[Score]
    covered_share: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a table: scores before and after mapping, of each model alone, and by chance; then the notes."""
        table: list[tuple[str, ...]] = [("score", "before", "after", "source", "target", "chance")]
        for row in self.rows:
            numbers = (row.before, row.after, row.source, row.target, row.chance)
            cells = ("-" if number is None else f"{number:.3f}" for number in numbers)
            table.append((f"{row.metric}: {row.query}, {row.against}", *cells))
        width = max(len(line[0]) for line in table)
        lines = (line[0].ljust(width) + "".join(cell.rjust(8) for cell in line[1:]) for line in table)
        return "\n".join([*lines, *self.notes])

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)

    def plot(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw each score before and after mapping, with the target's own score and those of the controls.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure, which a notebook displays and which is not registered with pyplot.
        annotate : bool, default=True
            Add a title and labels that identify what is drawn.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from congruence.plotting import draw_scores

        return draw_scores([asdict(row) for row in self.rows], ax, annotate=annotate)

    def get(self, metric: str, query: str, against: str) -> Score:
        """Return one line.

        Raises
        ------
        KeyError
            If there is no such line.
        """
        for row in self.rows:
            if (row.metric, row.query, row.against) == (metric, query, against):
                return row
        raise KeyError((metric, query, against))


#: Metrics that mean little without the controls: how far two vectors are apart, not which is nearest.
DISTANCES = ("cosine", "distance")


def retrieval_first(rows: list[Score]) -> list[Score]:
    """Return the lines with cosines and distances last, otherwise in their original order."""
    return sorted(rows, key=lambda row: row.metric in DISTANCES)


def labels_of(items: Embeddings, labels: Mapping[str, str] | None) -> np.ndarray:
    """Return the class of each image: its label or, without labels, its id. Raises InputError for images without a label."""
    if labels is None:
        return items.ids
    missing = [i for i in items.ids.tolist() if i not in labels]
    if missing:
        raise InputError(
            f"Got {len(missing)} images without a label ({shorten(repr(missing[0]))}, …); expected one for each. Add their ids to labels=…."
        )
    return id_texts([labels[i] for i in items.ids.tolist()])


def shared_codes(*sides: np.ndarray) -> list[np.ndarray]:
    """Return a number for each id or label of several sides; numbers are equal if the texts are, and follow the order of the texts."""
    texts = np.concatenate([id_texts(side) for side in sides])
    codes = np.unique(texts, return_inverse=True)[1].reshape(-1)
    return np.split(codes, np.cumsum([len(side) for side in sides])[:-1])


def labeled_prompts(prompts: Embeddings, labels: Mapping[str, str]) -> Embeddings:
    """Return the prompts that have a class. Raises InputError if none has."""
    kept = np.array([name in labels for name in prompts.ids.tolist()])
    if not kept.any():
        raise InputError(
            "Got prompts without classes; expected the class of each prompt, by id. Pass prompt_labels=… whose keys are the ids of the texts."
        )
    return prompts.take(kept)


def ensembled_prompts(prompts: Embeddings, labels: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ensemble of each class's prompts and the classes; prompts without a class are left out. Raises InputError if none has one."""
    prompts = labeled_prompts(prompts, labels)
    return ensemble_prompts(prompts.vectors, np.array([labels[name] for name in prompts.ids.tolist()]))


def map_for(mapping: Map, modality: str) -> Map:
    """Return the map set to a modality or, if it has no means of this modality, to its default means."""
    unknown = isinstance(mapping, OrthogonalMap) and modality not in mapping.modality_means_
    return mapping.for_modality(None if unknown else modality)


def with_vectors(rows: Embeddings, vectors: RowsLike) -> Embeddings:
    """Return other vectors of the same items, with the ids of the rows."""
    return Embeddings(vectors, ids=rows.ids if rows.has_ids else None, allow_zero_rows=True)
