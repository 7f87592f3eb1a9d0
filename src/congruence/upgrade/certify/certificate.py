"""Certify a change of models: measure each strategy on unseen anchors, and recommend one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from congruence._utils.display import as_html, as_text
from congruence._utils.ids import id_texts
from congruence._utils.plain import PlainData
from congruence._utils.threads import calm_threads
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import check_choice, check_positive, check_same_rows, check_seed
from congruence._version import __version__
from congruence.compare.pairing import check_pairing
from congruence.embeddings import Embeddings, Pairs, by_modality
from congruence.errors import ProjectionWarning
from congruence.evaluation.scores import bank_notes
from congruence.maps import Map, OrthogonalMap
from congruence.maps.card import choice_rows
from congruence.metrics import Hubness
from congruence.metrics.hubness import as_hubness
from congruence.upgrade.certify.design import Design, stored_modality
from congruence.upgrade.certify.estimates import gains
from congruence.upgrade.certify.lists import measure_lists
from congruence.upgrade.certify.mixed import measure_mixed
from congruence.upgrade.certify.recipe import ROLES, MapRecipe
from congruence.upgrade.certify.scoring import cross_fit, measure_controls, measure_heldout, show_searches
from congruence.upgrade.certify.theorems import theory_entries
from congruence.upgrade.certify.verdict import ACTIONS, Criteria, Verdict, forecast, judge, strategy_costs
from congruence.upgrade.choose import Choice, count_distinct
from congruence.upgrade.progressive.meter import Estimate
from congruence.upgrade.sides import check_sides, recorded

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DRAWS = 2000  # of the true scores and curve, which determine the verdict's confidence


@dataclass(frozen=True, repr=False)
class Certificate(PlainData):
    """Result of ``congruence.upgrade.certify.certify``: plain data."""

    verdict: Verdict
    task: str  # the measure that determines the verdict
    n_anchors: int  # fitted on
    n_queries: int  # scored
    fitted: list[str]  # modalities the map was fitted on
    measured: dict[str, str]  # "rows" and "queries" in words, "queries_are" "seen" or "unseen", "digest" of the ids
    strategies: dict[str, dict[str, Estimate]]  # scores by task and strategy (STRATEGIES)
    retention: dict[str, Estimate]  # score of mapping over re-embedding and the old model, by "<strategy>/<strategy>"
    cosines: dict[str, Estimate]  # of mapped and native rows, by modality
    curve: dict[str, Any]  # held-out score by number of anchors, with its power law
    cosine_curve: dict[str, Any]  # the same of the cosine
    gains: list[dict[str, Any]]  # expected and most, by number of further anchors
    pairing: dict[str, object]  # result of check_pairing
    covered: dict[str, float]  # share of the scored vectors' variance that the anchors cover, by modality
    distinct: dict[str, float]  # directions in which the anchors vary (choose.count_distinct), by fitted modality
    roles: dict[str, str]  # role in which mapped rows were read, by strategy that maps
    controls: dict[str, dict[str, float]]  # chance, a constant and a random rotation, by measure or cosine/modality
    theory: list[dict[str, Any]]  # the theorems' conditions and bounds, in numbers and a sentence
    thresholds: Criteria
    choice: dict[str, Any]  # the certified map, as of choose_map
    how_to_fit: str  # a command, or a Python call if no command can
    facts: dict[str, str]  # "source", "target", "data", "date", "seed", "version" and "modality" (stored)
    notes: list[str] = field(default_factory=list)  # that a reader needs to interpret the numbers
    costs: list[dict[str, Any]] = field(default_factory=list)  # quality and cost of each strategy
    progressive: dict[str, Any] = field(default_factory=dict)  # score by share of the store re-embedded, if measured
    #: Overlap of lists by encodings for a query (``LazySearch``), and what a log of queries costs, if measured
    lists: dict[str, Any] = field(default_factory=dict)
    #: Searches: "query" (id), "changed" (whether mapping changes it most), "lists" (ids of the first results by
    #: strategy), "wanted" (those of them that are right, or of the re-embedded store) and whether they were "judged"
    examples: list[dict[str, Any]] = field(default_factory=list)
    make_map: InitVar[Callable[..., Map]] = field(kw_only=True)

    def __post_init__(self, make_map: Callable[..., Map]) -> None:
        object.__setattr__(self, "_make_map", make_map)  # not a field, since it is no plain data

    def fit(self) -> Map:
        """Return the map that was certified, fitted on all anchors and ready to be saved."""
        made: Map = vars(self)["_make_map"]()
        return made

    def fit_queries(self) -> Map:
        """Return the map of the new model's queries into the old model's space that was measured."""
        made: Map = vars(self)["_make_map"](back=True)
        return made

    def plot(self, ax: Axes | None = None, *, task: str | None = None, annotate: bool = True) -> Axes:
        """Draw the score of each strategy with its interval, and the recommended one; dotted lines are the controls.

        ``task`` is a key of ``strategies``, by default the deciding one; ``annotate`` adds a title and labels.
        """
        from congruence.plotting import draw_strategies

        task = self.task if task is None else check_choice(task, self.strategies, "task")
        shown = dict(self.strategies[task])
        part = next((cost for cost in self.costs if cost["strategy"] == "progressive" and task == self.task), None)
        if part is not None:
            shown["progressive"] = part["score"]
        actions = [self.verdict.action] if self.verdict.settled else self.verdict.between
        data: dict[str, Any] = {
            "task": task,
            "strategies": {name: (e.value, *(e.interval or (e.value, e.value))) for name, e in shown.items()},
            "controls": self.controls.get(task, {}),
            "recommended": ["stored" if action == "map" else action for action in actions],
            "share": None if part is None else part["share"],
        }
        return draw_strategies(data, ax, annotate=annotate)

    def plot_learning_curve(self, ax: Axes | None = None, *, annotate: bool = True) -> Axes:
        """Draw the score by number of anchors, extrapolated to twice the anchors."""
        from congruence.plotting import draw_learning_curve

        best = self.strategies[self.task].get("re-embed")
        data: Any = {
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
        shares = ", ".join(f"{ACTIONS[action]} {share:.0%}" for action, share in self.verdict.confidence.items())
        facts = {"because": self.verdict.reason, "share of resamples": shares}
        for strategy, score in self.strategies[self.task].items():
            facts[strategy] = f"{self.task} {score}"
        facts["measured on"] = f"{self.measured['rows']}; {self.measured['queries_are']} {self.measured['queries']}"
        facts["fitted on"] = f"{self.n_anchors:,} pairs ({', '.join(self.fitted)})"
        return f"Certificate: {self.verdict.headline}", facts


@calm_threads()
def certify(
    old: RowsLike | Mapping[str, RowsLike],
    new: RowsLike | Mapping[str, RowsLike],
    method: str = "auto",
    *,
    modality: str | None = None,
    fitted: str | None = None,
    queries: tuple[RowsLike | Mapping[str, RowsLike], RowsLike | Mapping[str, RowsLike]] | None = None,
    text_queries: tuple[RowsLike | None, RowsLike] | None = None,
    labels: Mapping[str, str] | Labels | None = None,
    qrels: Mapping[str, Mapping[str, float]] | None = None,
    seen: bool = False,
    thresholds: Criteria | None = None,
    n_neighbors: int = 10,
    theory: str = "brief",
    random_state: int = 0,
    data: str = "",
    hubness: str | Hubness | None = None,
    single_modality: bool = False,
    rows: int | None = None,
    encode_rate: float | None = None,
    price: float | None = None,
    log: int = 1000,
    callback: Callable[[int], None] | None = None,
    **parameters: object,
) -> Certificate:
    """Measure what each upgrade strategy costs in quality, from items encoded by both models, and recommend one.

    docs/certify.md says what is measured. The gallery has the items given; in a larger one every strategy scores lower.

    Parameters
    ----------
    old, new : Embeddings or array_like, or mapping of str to those
        Anchors of one modality in both models, paired by id, or by position if they have no ids. Or a mapping by
        modality: one modality, or two modalities of the same items (matched by id), or, with ``labels``, items and the
        texts of their classes. The new model may lack the stored modality; re-embedding is then not evaluated. The old
        model may lack the texts; then neither it nor mapped queries are. Texts that share no id with the images are
        used as ``text_queries``.
    method : {"auto", "orthogonal", "linear"}, default="auto"
        The map to certify. ``"auto"`` is the map that ``congruence.fit`` chooses on these anchors, with rows of the
        other modality as its ``means``; the choice is repeated without each part of the pairs that is scored.
    modality : str, optional
        Modality of anchors that are not in a mapping; by default the modality the embeddings declare.
    fitted : str, optional
        Modality to fit on, or ``"both"``. By default all modalities that both models have, each centered at its own
        means; with labels, or with ``method="linear"``, the stored modality.
    queries : (old, new), optional
        Held-out items in both models, in the same form as the anchors; arrays get ids of their own. By default anchors
        are scored by maps that were not fitted on them.
    text_queries : (old, new), optional
        Texts of any items, in the old model (or None) and in the new one, that search the mapped and the
        re-embedded store. Only for one stored modality without labels.
    labels : mapping of str to str, or array_like of length n, optional
        Class of each stored item, by id or in the order of the old rows.
    qrels : mapping of str to mapping of str to number, optional
        Grades of stored items by the id of a text query and theirs, above 0 if relevant: then queries are scored by
        whether they find a relevant item.
    seen : bool, default=False
        Declare that the queries are a fixed list, as of classes, which the map and the plan of a migration may know. By
        default each is scored by maps and plans that have not seen it.
    n_neighbors : int, default=10
        Length of the result lists whose overlap is measured.
    theory : {"brief", "full"}, default="brief"
        ``"full"`` also computes κ of Definition 5.4, by linear programs that take minutes.
    data : str, optional
        Name of the data, shown in the certificate.
    hubness : optional
        As for ``congruence.metrics.class_retrieval``, for every strategy; the scored queries are the query bank.
    single_modality : bool, default=False
        Declare that no other modality will be mapped, so that ``"auto"`` may choose a linear map.
    rows, encode_rate, price : optional
        Rows of the store, items per second that the new model encodes, and price of encoding one: for what each
        strategy costs, and whether re-embedding needs fewer items than anchors had to be collected.
    log : int, default=1000
        Number of different queries for which the cost of re-embedding what they ask for is told.
    callback : callable, optional
        Called with 1 after each number of anchors that maps are fitted on, at most ``STEPS`` times.
    **parameters
        Parameters of the method, as for ``congruence.fit``.
    """
    check_seed(random_state)
    thresholds = thresholds or Criteria()
    correction = as_hubness(hubness)
    check_positive(n_neighbors, "n_neighbors", integer=True)
    for given, name in ((rows, "rows"), (encode_rate, "encode_rate"), (price, "price"), (log, "log")):
        if given is not None:
            check_positive(given, name, integer=name in ("rows", "log"))
    check_choice(theory, ("brief", "full"), "theory")
    source, target = by_modality(old, new, modality, names=("old", "new"))
    queries = None if queries is None else _named_apart(by_modality(*queries, modality))
    stored = source.get(stored_modality(source))
    if labels is not None and not isinstance(labels, Mapping) and stored is not None:
        check_same_rows(len(stored), len(labels), "old", "labels")
        labels = dict(zip(id_texts(stored.ids).tolist(), map(str, np.asarray(labels).tolist()), strict=True))
    held = () if queries is None else (("queries", *queries),)
    check_sides(
        *(
            recorded(f"{what}[{name!r}]", old.get(name), new.get(name))
            for what, old, new in (("anchors", source, target), *held)
            for name in {**old, **new}
        ),
        recorded("text_queries", *(text_queries or (None, None))),
    )
    design = Design.of(
        source,
        target,
        queries,
        text_queries,
        cast("Mapping[str, str] | None", labels),
        qrels,
        fitted,
        method,
        n_neighbors,
        correction,
        random_state,
        seen=seen,
    )
    anchors, items = design.anchors, design.items
    recipe = MapRecipe(design.fitted, method, parameters, single_modality, random_state)
    recipe.check(anchors)
    everything = np.arange(design.n_anchors)
    with warnings.catch_warnings():
        # Reported once, in the notes, instead of once per fold.
        warnings.simplefilter("ignore", ProjectionWarning)
        choice = recipe.choose(anchors, everything)
        mapping = recipe.fit(anchors, everything, choice, design.others)
        rotation = mapping.forward
        if not (isinstance(rotation, OrthogonalMap) and rotation.center):  # the theorems are about one about the means
            rotation = cast("OrthogonalMap", MapRecipe(design.fitted, "orthogonal").fit(anchors, everything).forward)
        if design.heldout:
            measured = measure_heldout(design, recipe, mapping, choice, callback)
        else:
            measured = cross_fit(items, recipe, choice, callback, others=design.others)
        mixed = measure_mixed(items, measured, items.task, rows, random_state)
        controls = measure_controls(mapping, rotation, items, random_state)
    rng = np.random.default_rng(random_state)
    first = design.fitted[0]
    pairing = check_pairing(
        anchors.source[first], anchors.target[first], ids=anchors.ids[first], random_state=random_state
    )
    task = items.task
    strategies, cosines = measured.estimates(task), measured.cosines()
    score, cosine = items.curved
    curve = measured.curve(score, design.n_anchors, strategies[task]["stored"].value)
    cosine_curve = measured.curve(cosine, design.n_anchors, cosines[cosine.split("/")[1]].value)
    retention, drawn = measured.retention(task, list(strategies[task]), DRAWS, rng)
    covered = {name: float(mapping.covered_share(name, rows).mean()) for name, rows in items.tables.source.items()}
    narrows = mapping.forward.n_features_in_ > mapping.forward.d_target
    verdict = judge(strategies, drawn, curve, thresholds, narrows, pairing, task, covered, rng, mixed)
    return Certificate(
        verdict=verdict,
        task=task,
        n_anchors=design.n_anchors,
        n_queries=strategies[task]["stored"].n,
        fitted=design.fitted,
        measured=design.measured(),
        strategies=strategies,
        retention=retention,
        cosines=cosines,
        curve=curve.to_dict(),
        cosine_curve=cosine_curve.to_dict(),
        gains=gains(curve, cosine_curve),
        pairing=pairing.to_dict(),
        covered=covered,
        distinct={name: count_distinct(anchors.source[name]) for name in design.fitted},
        roles={strategy: role for strategy, role in ROLES.items() if strategy in strategies[task]},
        controls=controls,
        theory=theory_entries(
            anchors,
            rotation,
            random_state,
            full=theory == "full",
            instead=None if rotation is mapping.forward else choice.name,
        ),
        choice=choice.to_dict(),
        how_to_fit=recipe.in_words(anchors, choice),
        thresholds=thresholds,
        facts={
            "source": _name_model(source, anchors.source),
            "target": _name_model(target, anchors.target),
            "data": data,
            "date": datetime.now(UTC).date().isoformat(),
            "seed": str(random_state),
            "version": __version__,
            "modality": items.tables.store_modality,
        },
        notes=design.notes()
        + bank_notes(correction)
        + _map_notes(recipe, choice, measured.maps)
        + ([pairing.sentence] if pairing.state == "cannot tell" else []),
        costs=strategy_costs(strategies[task], mixed, verdict, task, rows, encode_rate, price),
        progressive={} if mixed is None else forecast(mixed, verdict, task),
        lists=measure_lists(items, measured, log, rows, encode_rate, price, random_state),
        examples=show_searches(items, measured, random_state),
        make_map=partial(
            recipe.finish, mapping, anchors, choice, (source[first].space, target[first].space), design.others
        ),
    )


def _named_apart(
    sides: tuple[dict[str, Embeddings], dict[str, Embeddings]],
) -> tuple[dict[str, Embeddings], dict[str, Embeddings]]:
    """Return held-out rows, of which those without ids get ids that are no row numbers, as those of anchors may be."""
    for name in sides[0]:
        if name in sides[1]:
            Pairs.join(sides[0][name], sides[1][name])  # refuses what cannot be paired by position
    old, new = (
        {
            name: rows
            if rows.has_ids
            else replace(rows, ids=np.array([f"query {k}" for k in range(len(rows))], object))
            for name, rows in side.items()
        }
        for side in sides
    )
    return old, new


def _name_model(side: Mapping[str, Embeddings], modalities: Iterable[str]) -> str:
    """Return the name of a side's model and its width."""
    rows = [side[name] for name in modalities]
    spaces = [replace(items.space, modality=None, dim=None, normalized=None) for items in rows]
    return f"{next((space for space in spaces if space.model), spaces[0])}, {rows[0].dim}-d"


def _map_notes(recipe: MapRecipe, choice: Choice, of_folds: list[str]) -> list[str]:
    """Describe which map was certified, on what evidence it was chosen, and which maps the folds chose."""
    if recipe.method != "auto":
        return [f"Certified map: {choice.name}, as given."]
    facts = dict(choice_rows(choice.to_dict()))
    why = facts.get("chosen by", facts.get("chosen because"))
    if len(recipe.fitted) > 1:
        where = f"chosen among rotations, since {' and '.join(recipe.fitted)} pairs are fitted on together"
    else:
        where = f"which is what congruence fit chooses on the {recipe.fitted[0]} pairs"
    notes = [f"Certified map: {choice.name}, {where}: {why}."]
    if of_folds.count(choice.name) < len(of_folds):
        notes.append(
            "The choice is made again without each part of the pairs that is scored: "
            f"{of_folds.count(choice.name)} of {len(of_folds)} times it was the same. The scores are those of "
            "choosing and fitting together."
        )
    return notes
