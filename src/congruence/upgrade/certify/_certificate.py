"""What a certificate holds: plain data, ready for a table, JSON or a page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from congruence._utils.display import as_html, as_text
from congruence._utils.validation import check_choice
from congruence.upgrade.certify.curve import CurveRecord
from congruence.upgrade.certify.intervals import Estimate
from congruence.upgrade.certify.roads import Road
from congruence.upgrade.certify.theorems import Entry
from congruence.upgrade.certify.verdict import Thresholds, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from congruence.plotting.data import AnchorsCurve


@dataclass(frozen=True, repr=False)
class Certificate:
    """Outcome of :func:`congruence.upgrade.certify.certify`.

    Attributes
    ----------
    verdict : Verdict
    task : str
        The measure the verdict rests on.
    n_anchors, n_queries : int
        Anchors fitted on, and items scored.
    fitted : list of str
        Modalities the map was fitted on.
    strategies : dict of str to dict of str to Estimate
        By task: score of each strategy (:data:`congruence.upgrade.certify.STRATEGIES`) that could be measured.
    retention : dict of str to Estimate
        Of the task: ratio of mapping to re-embedding and to keeping the old model, by ``"<strategy>/<strategy>"``.
    cosines : dict of str to Estimate
        Cosine of mapped and target rows, by modality.
    curve, cosine_curve : dict
        Held-out score and cosine by number of anchors: sizes, means, deviations and the power law.
    gains : list of dict
        For some numbers of further anchors the expected gain, and the most it could be, of score and cosine.
    pairing : dict
        Outcome of :func:`congruence.compare.pairing.check_pairing`.
    covered : dict of str to float
        Mean share of the scored vectors' variance (norm²) in directions that the anchors cover, by modality.
    controls : dict of str to dict of str to float
        What a random list (``"chance"``), every row at the target's mean (``"constant"``, of cosines) and a random rotation about the
        right means (``"random_rotation"``) reach, by measure or ``"cosine/<modality>"``.
    theory : list of dict
        The theorems' conditions and bounds on the anchors, each with the number and a sentence.
    thresholds : Thresholds
    choice : dict
        The map that is certified: :meth:`congruence.upgrade.choose.Choice.to_dict`.
    how_to_fit : str
        What gives this map: a command, or the call in Python where no command does.
    facts : dict of str to str
        Which models (``"source"``, ``"target"``) and data (``"data"``) it is about, on which ``"date"``, with which ``"seed"`` and
        ``"version"`` of congruence.
    notes : list of str
        What a reader must know to read the numbers.
    roads : list of dict
        Keeping the old model, mapping, re-embedding progressively and re-embedding everything: score and costs of each
        (:func:`congruence.upgrade.certify.roads.roads`).
    progressive : dict
        Score of the decisive measure by ``"share"`` of the store that is re-embedded in the ``"order"``: ``"value"``, ``"low"`` and ``"high"``; ``"sentence"`` says where no share up to a half is enough. Empty where the target model
        has no vectors of the store.
    """

    verdict: Verdict
    task: str
    n_anchors: int
    n_queries: int
    fitted: list[str]
    strategies: dict[str, dict[str, Estimate]]
    retention: dict[str, Estimate]
    cosines: dict[str, Estimate]
    curve: CurveRecord
    cosine_curve: CurveRecord
    gains: list[dict[str, float]]
    pairing: dict[str, object]
    covered: dict[str, float]
    controls: dict[str, dict[str, float]]
    theory: list[Entry]
    thresholds: Thresholds
    choice: dict[str, Any]
    how_to_fit: str
    facts: dict[str, str]
    notes: list[str] = field(default_factory=list)
    roads: list[Road] = field(default_factory=list)
    progressive: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return asdict(self)

    def plot(self, ax: Axes | None = None, *, task: str | None = None, annotate: bool = True) -> Axes:
        """Draw the score of each way to search with its interval; dotted, the controls that were measured.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            By default of a new figure, which a notebook shows and pyplot does not know.
        task : str, optional
            A key of ``strategies``; by default the measure the verdict rests on.
        annotate : bool, default=True
            Add a title, and say which line is which control.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ParameterError
            A task that was not measured.
        """
        from congruence.plotting import draw_strategies

        task = self.task if task is None else check_choice(task, self.strategies, "task")
        ways = {way: (score.value, score.low, score.high) for way, score in self.strategies[task].items()}
        return draw_strategies(
            {"task": task, "ways": ways, "controls": self.controls.get(task, {})}, ax, annotate=annotate
        )

    def plot_learning_curve(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the score by number of anchors, and its continuation to four times the anchors.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            By default of a new figure, which a notebook shows and pyplot does not know.
        annotate : bool, default=True
            Add a title, and say which is which.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from congruence.plotting import draw_learning_curve

        best = self.strategies[self.task].get("re-embed")
        data: AnchorsCurve = {
            "task": self.task,
            "n_anchors": self.n_anchors,
            "curve": self.curve,
            "re-embed": None if best is None else best.value,
        }
        return draw_learning_curve(data, ax, annotate=annotate)

    def __repr__(self) -> str:
        return as_text(*self._shown(), most=3)

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> tuple[str, dict[str, str]]:
        """Return the verdict, how sure it is, and the score of each strategy with its interval."""
        sure = self.verdict.confidence.get(self.verdict.action, 0.0)
        facts = {"because": self.verdict.reason, "sure": f"{sure:.0%} of draws say the same"}
        for strategy, score in self.strategies[self.task].items():
            facts[strategy] = f"{self.task} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
        facts["measured on"] = (
            f"{self.n_queries:,} items; fitted on {self.n_anchors:,} anchors ({', '.join(self.fitted)})"
        )
        return f"Certificate: {self.verdict.headline}", facts
