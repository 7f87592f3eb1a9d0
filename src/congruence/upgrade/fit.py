"""Fit a map from two sets of embeddings, check the pairing, and score the map on held-out pairs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np

from congruence._utils.columns import read_once, to_rows
from congruence._utils.ids import is_in
from congruence._utils.threads import calm_threads
from congruence._utils.typing import Labels, RowsLike
from congruence._utils.validation import as_matrix, check_choice, check_same_rows, check_seed
from congruence.compare.origins import check_means, remember_rows
from congruence.compare.pairing import check_pairing, warn_pairing
from congruence.embeddings import MODALITIES, Embeddings, Pairs, as_embeddings, as_pair
from congruence.errors import DegenerateWarning, ModalityError, PairingWarning, ParameterError
from congruence.maps import METHODS, AffineMap, HeadsMap, Map, OrthogonalMap, RefinedMap, make_map
from congruence.maps.refinement import read_pools
from congruence.splits import Split, duplicate_groups, warn_duplicates
from congruence.upgrade.choose import OFFSET, choose_map, count_distinct
from congruence.upgrade.readouts import choose_readout, read_as_store, read_queries
from congruence.upgrade.sides import check_sides, recorded
from congruence.upgrade.stored import choose_prefix, first_columns

#: By modality, rows of the old and of the new model (None if unknown), or the mean (d,) of either.
Means: TypeAlias = dict[str, tuple[Embeddings | np.ndarray, Embeddings | np.ndarray | None]]

#: What ``means`` holds for a modality.
MeansOf: TypeAlias = "RowsLike | tuple[RowsLike, RowsLike | None] | Mapping[str, RowsLike | None]"

#: What the two sides of means may be called in a dict.
_SIDES = {"source": "old", "target": "new"}

#: Fewer pairs than this get a warning that says what they determine.
FEW = 10


@calm_threads()
def fit(
    old: RowsLike,
    new: RowsLike,
    method: str = "auto",
    *,
    modality: str | None = None,
    means: Mapping[str, MeansOf] | None = None,
    queries: str | Sequence[str] | None = None,
    unpaired: tuple[RowsLike, RowsLike] | None = None,
    holdout: float | int = 0,
    random_state: int = 0,
    groups: Labels | str | None = "identical",
    prefix: int | str | None = None,
    check: bool = True,
    strict: bool = False,
    missing: str = "drop",
    single_modality: bool = False,
    **parameters: object,
) -> Map:
    """Pair two sets of embeddings, check the pairing, fit a map, and score it on held-out pairs.

    Parameters
    ----------
    old, new : Embeddings or array_like, shapes (n, d_source) and (m, d_target)
        Anchors of one modality in both models (of two for joint-space methods). ``Embeddings`` and tables with a column
        of ids on both sides are paired by id, and two pandas objects by their indexes unless both are the default 0, 1,
        2, …. Other arrays, tensors, lists and columns of vectors are paired by position and must be equally long.
    method : str, default="auto"
        A key of ``congruence.maps.METHODS``, or ``"auto"``: a rotation about the means or, of models that are related,
        near the identity, chosen by what it gets right of left-out pairs (``congruence.upgrade.choose.choose_map``).
    modality : str, optional
        Modality of the anchors, on both sides; by default the modality the embeddings declare.
    means : mapping of str to array_like or (array_like, array_like or None), optional
        Rows of other modalities in the old model, or in both, or their means (d,), so that the map can also be applied
        to these modalities; also as ``{"image": {"old": …, "new": …}}``. If the new model has no rows, the map about
        the anchors' means is used, with ``"auto"`` minus half of its offset (``recenter``).
    queries : str or sequence of str, optional
        Modalities of the queries that will search, or "all": stored rows are read for them
        (``congruence.maps.readout``). By default the one modality that is known of the new model, else "all".
    unpaired : (Embeddings or array_like, Embeddings or array_like), shapes (p, d_source) and (q, d_target), optional
        Further rows of both models, of the anchors' modality and in any order, without held-out items. Matches
        found between them are added to the anchors if this improves maps on left-out anchors
        (``congruence.refine``; evidence in ``scores_["refinement"]``). The map is then orthogonal.
    holdout : float or int, default=0
        Share (below 1) or number of pairs kept out of the fit. They can be found again by their ids.
    groups : "identical", sequence of length n, or None, default="identical"
        Which pairs are held out together: those with identical vectors on either side
        (``congruence.splits.duplicate_groups``), those whose old rows have equal labels, or (None) each on its own.
    prefix : int or "auto", optional
        Of a new model trained for it (Matryoshka): map to so many of its first columns; with "auto" to the fewest that
        find left-out pairs as well as all of them (``congruence.upgrade.stored.choose_prefix``).
    check, strict : bool
        Compare the alignment with random re-pairings, look for individual wrong pairs, and refuse rows in ``means``
        that are not of the two models; with ``strict``, an error instead of a warning.
    missing : {"drop", "error"}, default="drop"
        What to do with ids found in only one of the two.
    single_modality : bool, default=False
        Declare that only rows of the anchors' modality will be mapped. ``"auto"`` may then choose a linear map, which
        may degrade other modalities.
    **parameters
        Parameters of the map; with ``"auto"``, those of ``OrthogonalMap`` that are not to be chosen.

    Returns
    -------
    Map
        With ``source_space_``, ``target_space_`` and ``scores_`` set. ``scores_["choice"]`` records what ``"auto"``
        chose and on what evidence (``congruence.upgrade.choose.Choice``).

    Raises
    ------
    UnpairedError
        With ``strict``, if the anchors do not pass the pairing check.
    SpaceMismatchError
        If rows in ``means`` are of another model; a DirectionError if the two models are exchanged.

    Warns
    -----
    PairingWarning, DuplicateWarning, DegenerateWarning, AlignmentWarning
        If the anchors do not look paired; if identical pairs were held out together; if there are fewer than ten pairs;
        if unpaired rows did not improve the map.
    """
    check_seed(random_state)
    method, model = _unfitted(method, parameters, unpaired is not None, single_modality)
    source, target = as_pair(old, new, ("old", "new"))
    ours, theirs = _modalities(model, source, target, modality)
    joined = Pairs.join(source, target, missing=missing)
    # Zero rows get here only if the caller allowed them. They have no direction, so they are left out.
    empty = np.flatnonzero(~(joined.source.vectors.any(axis=1) & joined.target.vectors.any(axis=1)))
    pairs = joined.take(np.delete(np.arange(len(joined)), empty)) if len(empty) else joined
    group, identical = _groups(groups, source, pairs) if holdout else (None, None)
    split = Split.choose(pairs.ids, holdout, random_state, group)
    heldout = split.held_out(pairs.ids)
    train = pairs.take(~heldout) if heldout.any() else pairs
    others = _read_means({} if means is None else means, ours, split)
    chosen = None if prefix is None else choose_prefix(train, prefix, random_state)
    if chosen is not None:
        target, pairs, train = (first_columns(one, chosen.prefix) for one in (target, pairs, train))
        others = {name: (rows[0], first_columns(rows[1], chosen.prefix)) for name, rows in others.items()}
        unpaired = None if unpaired is None else (unpaired[0], first_columns(unpaired[1], chosen.prefix))
    if others and not isinstance(model, OrthogonalMap):
        raise ParameterError(
            f"Got means of other modalities for `method={model.kind!r}`; only a rotation is shared by modalities.",
            'Pass `method="orthogonal"`, or leave out `means=…`.',
        )
    by_id = source.has_ids and target.has_ids
    scores: dict[str, object] = {"n_pairs": len(train), "paired_by": "id" if by_id else "position"}
    scores["distinct"] = count_distinct(train.source.vectors)
    scores |= {} if chosen is None else {"prefix": chosen.to_dict()}
    if len(train) < FEW and unpaired is None:
        _warn_few(train)
    if len(joined.only_source) or len(joined.only_target):
        scores["unpaired_source"], scores["unpaired_target"] = len(joined.only_source), len(joined.only_target)
    if len(empty):
        scores["zero_rows_left_out"] = len(empty)
    if identical:
        scores["identical_rows"], scores["identical_groups"] = identical["rows"], identical["groups"]
    same_start = np.array_equal(pairs.source.vectors[:1], pairs.target.vectors[:1])
    if check and same_start and np.array_equal(pairs.source.vectors, pairs.target.vectors):
        problem = "The old and the new rows are the same vectors."
        warnings.warn(PairingWarning(problem, "Pass the same items, encoded by the other model."), stacklevel=2)
    if check:
        report = check_pairing(pairs.source.vectors, pairs.target.vectors, ids=pairs.ids)  # in the order of the files
        warn_pairing(report, strict=strict)
        scores["pairing"] = report.to_dict()
        if report.decided:
            scores["cross_validated_alignment"] = report.alignment
    kinds = None if group is None else np.unique(group[~heldout], return_inverse=True)[1]
    if method == "auto":
        gathered = OrthogonalMap().partial_fit(train.source.vectors, train.target.vectors, modality=ours)
        (moments,) = gathered.moments_.values()
        choice = choose_map(
            *train,
            fixed=parameters,
            single_modality=single_modality,
            groups=kinds,
            random_state=random_state,
            moments=moments,
        )
        scores["choice"], quality = choice.to_dict(), choice.quality
        model = make_map(choice.method, **choice.parameters)
    if isinstance(model, RefinedMap) and unpaired is not None:
        pools = _outside(unpaired, pairs.take(heldout))
        model.fit(train.source.vectors, train.target.vectors, modality=ours, unpaired=pools)
        scores["refinement"] = model.refinement_.to_dict()  # type: ignore[union-attr]  # pools were passed
    elif method == "auto" and isinstance(model, OrthogonalMap) and model.shrinkage != "cv":
        model = OrthogonalMap.from_moments({ours or "": moments}, **choice.parameters)
    elif isinstance(model, OrthogonalMap):
        model.fit(train.source.vectors, train.target.vectors, modality=ours)
    else:
        model.fit(train.source.vectors, train.target.vectors)
    model.source_space_ = replace(source.space, modality=ours)
    model.target_space_ = replace(target.space, modality=theirs)
    if isinstance(model, OrthogonalMap):  # "auto" may have chosen a linear map
        for name, of in others.items():
            model = model.recenter(*of, modality=name, offset=OFFSET if method == "auto" else 1.0, use=False)
    further = [recorded(f"means[{name!r}]", *of) for name, of in others.items()]
    check_sides(recorded("rows", source, target), *further, recorded("unpaired rows", *(unpaired or (None, None))))
    sides: tuple[dict[str | None, np.ndarray], ...] = tuple(
        {name: rows.vectors for name, of in others.items() if isinstance(rows := of[k], Embeddings)} for k in (0, 1)
    )
    if isinstance(model, AffineMap):
        asked = read_queries(queries, model, ours)
        if method == "auto":
            model.readout_ = choose_readout(model, quality, asked, sides)
        else:
            read_as_store(model, (train.source.vectors, train.target.vectors), method, asked, sides, kinds)
    elif queries not in (None, "all"):
        raise ParameterError(
            f"Stored rows of `method={model.kind!r}` are the same for all queries.", "Leave out `queries=…`."
        )
    model.role_ = "store"
    if check:
        for name in others:
            check_means(name, [side.get(name) for side in sides], (train.source.vectors, train.target.vectors))
    remember_rows(model, {ours: train.source.vectors} | sides[0], {theirs: train.target.vectors} | sides[1])
    if heldout.any():
        scores["holdout"] = split.to_dict()
        scores.update(_held_out_scores(model.for_modality(ours), pairs.take(heldout)))
    model.scores_ = scores
    return model


def _unfitted(method: str, parameters: Mapping[str, Any], refined: bool, single_modality: bool) -> tuple[str, Map]:
    """Return the method and the map to fit; of ``"auto"`` a rotation, until a map is chosen."""
    check_choice(method, ("auto", *METHODS), "method")
    if refined and method == "auto":
        method = "orthogonal"
    if method != "auto" and single_modality:
        raise ParameterError(f"Got `single_modality=True` for `method={method!r}`; it is for choices.", "Leave it out.")
    if refined and method != "orthogonal":
        raise ParameterError(
            f"Only an orthogonal map is refined with unpaired rows; got `method={method!r}`.",
            "Pass `method='orthogonal'`, or leave out `unpaired=…`.",
        )
    if refined:
        return method, RefinedMap(**parameters)
    return method, OrthogonalMap() if method == "auto" else make_map(method, **parameters)


def _warn_few(train: Pairs) -> None:
    """Warn of what few pairs determine."""
    most = min(train.source.dim, train.target.dim)
    known = min(len(train) - 1, most)
    warnings.warn(
        DegenerateWarning(
            f"Got {len(train)} pairs, which determine at most {known} of {most} directions ({known / most:.0%}); "
            "what vectors have in the others is lost, and too few are left to measure how good the map is.",
            "Pass more pairs; some hundred are usual.",
        ),
        stacklevel=3,
    )


def _outside(unpaired: tuple[RowsLike, RowsLike], heldout: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return the pools without held-out items, identified by ids, or by vectors if the pools have no ids."""
    sides = heldout.source, heldout.target
    pools = []
    widths = (side.vectors.shape[1] for side in sides)
    for pool, passed, held in zip(read_pools(unpaired, *widths), unpaired, sides, strict=True):
        seen = np.zeros(len(pool), bool)
        if len(held):
            labels = duplicate_groups(np.concatenate([held.vectors, pool]))
            seen = np.isin(labels[len(held) :], labels[: len(held)])
            if isinstance(passed, Embeddings) and passed.has_ids and held.has_ids:
                seen |= is_in(passed.ids, held.ids)
        pools.append(pool[~seen])
    return pools[0], pools[1]


def _groups(
    groups: Labels | str | None, source: Embeddings, pairs: Pairs
) -> tuple[np.ndarray | None, dict[str, int] | None]:
    """Return a group label for each pair, and the numbers of identical rows if identity defines the groups."""
    if groups is None:
        return None, None
    if isinstance(groups, str):
        check_choice(groups, ("identical",), "groups")
        labels = duplicate_groups(pairs.source, pairs.target)
        return labels, warn_duplicates(labels, stacklevel=3)
    check_same_rows(len(source), len(groups), "old", "groups")
    label_of = dict(zip(source.ids.tolist(), np.asarray(groups).tolist(), strict=True))
    return np.array([label_of[name] for name in pairs.source.ids.tolist()]), None


def _modalities(
    model: Map, source: Embeddings, target: Embeddings, modality: str | None
) -> tuple[str | None, str | None]:
    """Return the modality of each side: the same for both, unless the map has a head for each side."""
    if modality is not None:
        check_choice(modality, MODALITIES, "modality")
    elif isinstance(model, HeadsMap):
        return source.space.modality, target.space.modality
    declared = [m for m in (modality, source.space.modality, target.space.modality) if m is not None]
    if len(set(declared)) > 1:
        raise ModalityError(
            f"Got pairs of different modalities ({', '.join(declared)}).",
            "Fit on one and pass the other as `means=…`, or use `method='cca'` or `method='procrustes'`.",
        )
    return (declared[0], declared[0]) if declared else (None, None)


def _read_means(means: Mapping[str, MeansOf], fitted: str | None, split: Split) -> Means:
    """Return rows of other modalities without held-out items, which must stay unseen and count in no mean."""

    def read(rows: RowsLike, name: str) -> Embeddings | np.ndarray:
        rows = read_once(rows)
        if not isinstance(rows, Embeddings) and (vector := to_rows(rows, name)).ndim == 1:
            return as_matrix(vector[None], name, allow_zero_rows=True)[0]
        given = as_embeddings(rows, name)
        kept = given.take(~split.held_out(given.ids))
        if not len(kept):
            raise ParameterError(f"No rows of {name} outside the held-out items.", "Pass a smaller `holdout=…`.")
        return kept

    if not isinstance(means, Mapping):
        raise ParameterError(
            "Got means that are no mapping from modality to rows.", "Pass `means={'image': (old images, new images)}`."
        )
    if means and fitted is None:
        raise ParameterError("Got means of other modalities, but not the pairs' modality.", "Pass `modality=…`.")
    if fitted in means:
        raise ParameterError(f"Got means for {fitted!r}, the pairs' modality.", f"Remove {fitted!r} from `means=…`.")
    out: Means = {}
    for name, of in means.items():
        sides: Any = of if isinstance(of, tuple) or (isinstance(of, list) and len(of) == 2) else (of, None)
        unknown: set[str] = set()
        if isinstance(of, Mapping):
            called = {_SIDES.get(side, side): rows for side, rows in of.items()}
            sides, unknown = (called.pop("old", None), called.pop("new", None)), set(called)
        if unknown or len(sides) != 2 or sides[0] is None:
            raise ParameterError(
                f"Got means of {name} that are not those of an old and a new model.",
                f"Pass `means={{{name!r}: (old rows, new rows)}}`, or the old rows alone.",
            )
        ours, theirs = (None if side is None else read(side, f"means[{name!r}][{k}]") for k, side in enumerate(sides))
        out[name] = (cast("Embeddings | np.ndarray", ours), theirs)
    return out


def _held_out_scores(model: Map, heldout: Pairs) -> dict[str, object]:
    """Return retrieval and cosine of held-out pairs, with chance and controls."""
    # Imported here: a fit without held-out pairs does not need it, and the import takes a fifth of a second.
    from congruence.evaluation.controls import cosine_controls
    from congruence.metrics import class_retrieval, paired_cosine, recall_at_k

    X, Y = heldout
    # Both sides in the space where they are compared: one-sided maps leave the target rows unchanged.
    mapped, theirs = model.transform(X), model.transform_target(Y)
    own = np.arange(len(heldout))
    controls = cosine_controls(model, X, Y)
    scores: dict[str, object] = {
        "held_out_pairs": len(heldout),
        "held_out_retrieval_at_1": class_retrieval(mapped, theirs, own),
    }
    if isinstance(model, HeadsMap):
        scores["held_out_retrieval_back_at_1"] = class_retrieval(theirs, mapped, own)
    scores["held_out_retrieval_chance"] = 1 / len(heldout)
    if len(heldout) >= 10:
        scores["held_out_recall_at_10"] = recall_at_k(mapped, theirs, own, k=10)
        scores["held_out_recall_at_10_chance"] = 10 / len(heldout)
    scores["held_out_cosine"] = paired_cosine(mapped, theirs)
    if X.shape[1] == Y.shape[1]:
        scores["held_out_cosine_unmapped"] = paired_cosine(X, Y)
    scores["held_out_cosine_constant"] = controls.constant
    scores["held_out_cosine_random_rotation"] = controls.random_rotation
    return scores
