"""The certificate: plain data, ready for a table, JSON or an HTML page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from congruence._utils.display import as_html, as_text
from congruence._utils.validation import check_choice
from congruence.upgrade._estimate import Estimate
from congruence.upgrade.certify.costs import StrategyCost
from congruence.upgrade.certify.curve import CurveRecord
from congruence.upgrade.certify.theorems import Entry
from congruence.upgrade.certify.verdict import Thresholds, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Certificate:
    """Result of :func:`congruence.upgrade.certify.certify`.

    Attributes
    ----------
    verdict : Verdict
    task : str
        The measure that determines the verdict.
    n_anchors, n_queries : int
        Numbers of anchors fitted on, and of items scored.
    fitted : list of str
        Modalities the map was fitted on.
    strategies : dict of str to dict of str to Estimate
        By task: the score of each strategy (:data:`congruence.upgrade.certify.STRATEGIES`) that could be measured.
    retention : dict of str to Estimate
        On this task: ratio of the score of mapping to that of re-embedding and of keeping the old model, by ``"<strategy>/<strategy>"``.
    cosines : dict of str to Estimate
        Cosine of mapped and target rows, by modality.
    curve, cosine_curve : dict
        Held-out score and cosine by number of anchors: sizes, means, deviations and the power law.
    gains : list of dict
        For several numbers of further anchors, the expected gain and its upper bound, for score and cosine.
    pairing : dict
        Result of :func:`congruence.compare.pairing.check_pairing`.
    covered : dict of str to float
        Mean share of the scored vectors' variance (norm²) in directions that the anchors cover, by modality.
    controls : dict of str to dict of str to float
        Scores of a random list (``"chance"``), of every row replaced by the target's mean (``"constant"``, for cosines) and of a random
        rotation about the correct means (``"random_rotation"``), by measure or ``"cosine/<modality>"``.
    theory : list of dict
        The theorems' conditions and bounds evaluated on the anchors, each with its number and a sentence.
    thresholds : Thresholds
    choice : dict
        The certified map: :meth:`congruence.upgrade.choose.Choice.to_dict`.
    how_to_fit : str
        How to fit this map: a command, or a Python call if no command can.
    facts : dict of str to str
        The models (``"source"``, ``"target"``) and ``"data"`` it refers to, the ``"date"``, the ``"seed"`` and the
        ``"version"`` of congruence.
    notes : list of str
        Notes a reader needs to interpret the numbers.
    costs : list of dict
        Quality and cost of each strategy: keeping the old model, mapping, re-embedding progressively and re-embedding everything
        (:func:`congruence.upgrade.certify.costs.strategy_costs`).
    progressive : dict
        Score of the decisive measure by ``"share"`` of the store that is re-embedded in the ``"order"``: ``"value"``, ``"low"`` and ``"high"``.
        ``"sentence"`` states if no share up to one half is sufficient. Empty if the target model has no vectors of the store.
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
    costs: list[StrategyCost] = field(default_factory=list)
    progressive: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return all fields as plain data."""
        return asdict(self)

    def plot(self, ax: Axes | None = None, *, task: str | None = None, annotate: bool = True) -> Axes:
        """Draw the score of each strategy with its interval; dotted lines are the controls that were measured.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure, which a notebook displays and which is not registered with pyplot.
        task : str, optional
            A key of ``strategies``; by default the measure that determines the verdict.
        annotate : bool, default=True
            Add a title, and label the controls.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ParameterError
            If the task was not measured.
        """
        from congruence.plotting import draw_strategies

        task = self.task if task is None else check_choice(task, self.strategies, "task")
        strategies = {name: (score.value, score.low, score.high) for name, score in self.strategies[task].items()}
        return draw_strategies(
            {"task": task, "strategies": strategies, "controls": self.controls.get(task, {})}, ax, annotate=annotate
        )

    def plot_learning_curve(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the score by number of anchors, extrapolated to four times the anchors.

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
        from congruence.plotting import draw_learning_curve

        best = self.strategies[self.task].get("re-embed")
        data: dict[str, Any] = {
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
        """Return the verdict, its confidence, and the score of each strategy with its interval."""
        sure = self.verdict.confidence.get(self.verdict.action, 0.0)
        facts = {"because": self.verdict.reason, "sure": f"{sure:.0%} of draws say the same"}
        for strategy, score in self.strategies[self.task].items():
            facts[strategy] = f"{self.task} {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
        facts["measured on"] = (
            f"{self.n_queries:,} items; fitted on {self.n_anchors:,} anchors ({', '.join(self.fitted)})"
        )
        return f"Certificate: {self.verdict.headline}", facts
