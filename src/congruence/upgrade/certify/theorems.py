"""The theorems' conditions and bounds, evaluated on the anchors, each as one entry with a sentence."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from congruence.embeddings import normalize_rows
from congruence.errors import InputError
from congruence.maps import OrthogonalMap
from congruence.theory import (
    KernelAgreement,
    anchor_map,
    anchors_needed,
    class_margins,
    covered_share,
    gram_agreement,
    kappa,
    kernel_agreement,
    linear_bound,
    orthogonal_bound,
    polar_rotation,
    projected_text_bound,
    sym_spanning,
    text_bound,
)
from congruence.upgrade.certify.design import PairedTables

_MOST = 2000  # largest number of rows of a modality that are used

#: Largest number of dimensions of the symmetric matrices for which κ is sought: beyond, it takes minutes.
_MOST_KAPPA = 600


def theory_entries(
    tables: PairedTables, mapping: OrthogonalMap, random_state: int, *, full: bool = False, instead: str | None = None
) -> list[dict[str, Any]]:
    """Evaluate the theorems' conditions on the anchors, for a rotation about the means fitted on all of them. What says
    nothing about these anchors is left out: bounds that any map keeps, and theorems whose conditions fail.

    ``full`` also computes κ; ``instead`` is the certified map, in words, if it is another one. The theorems are about
    unit rows, and map from the narrower model to the wider one, so a narrower target is exchanged with the source.
    """
    rng = np.random.default_rng(random_state)
    rows = {
        name: np.sort(rng.choice(len(ids), _MOST, replace=False)) if len(ids) > _MOST else np.arange(len(ids))
        for name, ids in tables.ids.items()
    }
    if tables.query_modality != tables.store_modality and not tables.by_class:
        rows[tables.query_modality] = rows[tables.store_modality]  # the same items
    source, target = (
        {name: normalize_rows(side[name][rows[name]].astype(np.float64)) for name in side}
        for side in (tables.source, tables.target)
    )
    rotation = mapping.rotation_
    exchanged = rotation.shape[0] > rotation.shape[1]
    if exchanged:
        source, target, rotation = target, source, rotation.T
    entries: list[dict[str, Any]] = []
    if instead is not None:
        words = (
            "The theorems concern rotations. They are evaluated for the rotation about the means of these anchors, not "
            f"for the certified map ({instead})."
        )
        entries.append(_entry("§6", "the map", words))
    if exchanged:
        words = (
            f"The target is narrower ({rotation.shape[0]} of {rotation.shape[1]} dimensions), so the theorems are "
            "applied from the target to the source."
        )
        entries.append(_entry("§5.3", "direction", words))
    F, F_other = source.get(tables.store_modality), target.get(tables.store_modality)
    G, G_other = source.get(tables.query_modality), target.get(tables.query_modality)
    if F is None or F_other is None or G is None or G_other is None or tables.store_modality == tables.query_modality:
        for name in source:
            if name in target:
                agreement = gram_agreement(source[name], target[name], "affine")
                entries.append(_agreement(agreement, f"{name}–{name} similarities", "Thm 5.5"))
        return entries
    for relation in ("raw", "constant", "affine"):
        agreement = kernel_agreement(F, G, F_other, G_other, relation)
        theorem = {"raw": "Assumption 5.2", "constant": "Thm 5.1", "affine": "Cor. C.6"}[relation]
        entries.append(_agreement(agreement, "image–text similarities", theorem))
    spanning, constant = _spanning(F, tables.store_modality, random_state, full)
    entries.append(spanning)
    Q = polar_rotation(rotation).rotation
    bounds = [text_bound(F, G, F_other, G_other, Q), projected_text_bound(F, G, F_other, G_other, Q)]
    with suppress(InputError):  # Thm 5.3 needs texts that span the wider model's dimensions
        A = anchor_map(G, G_other)
        bounds.insert(0, linear_bound(F, G, F_other, G_other))
        if constant is not None:
            bounds.insert(1, orthogonal_bound(F, F_other, A.matrix, constant))
    for bound in bounds:
        if not bound.vacuous:
            words = bound.in_words()
            entries.append(_entry(bound.theorem, bound.quantity, words[:1].upper() + words[1:], bound.to_dict()))
    share = covered_share(F, G)
    quantity = f"{tables.query_modality} in the span of the {tables.store_modality} anchors"
    words = (
        f"The {tables.store_modality} anchors span {share.rank} of {F.shape[1]} dimensions, and "
        f"{share.quantiles['50%']:.0%} of a median {tables.query_modality}'s squared norm; the map is not determined "
        "outside this span."
    )
    if share.rank < F.shape[1]:
        entries.append(_entry("Thm C.16", quantity, words, {"rank": share.rank, "quantiles": share.quantiles}))
    margins = class_margins(
        F, G, G_other, Q, names=tables.ids[tables.query_modality][rows[tables.query_modality]].tolist()
    )
    breaking = margins.breaking()
    if not breaking and margins.rho > margins.rounding and not margins.certified_by_difference.any():
        return entries  # the assumption fails, and without it no class is certain
    words = margins.in_words()
    if breaking:
        words += f" Hardest to tell apart: {', '.join(breaking[:3])}."
    numbers = {key: value for key, value in margins.to_dict().items() if not isinstance(value, list)}
    entries.append(_entry("Prop. C.19", "margins of classes", words, {**numbers, "breaking": breaking}))
    return entries


def _spanning(F: np.ndarray, stored: str, random_state: int, full: bool) -> tuple[dict[str, Any], float | None]:
    """Return whether the anchors span the symmetric matrices, and how well conditioned they are."""
    n, d = F.shape
    needed = anchors_needed(d)
    constant: float | None = float("inf")
    numbers: dict[str, object] = {"needed": needed, "n": n}
    anchors = f"The {n:,} {stored} anchors span"
    bounds = "κ, which bounds how much errors grow when the norms of other rows are extrapolated"
    if n < needed:
        numbers["spans"] = False
        words = (
            f"Deriving a rotation from norms alone needs {needed:,} {stored} anchors in {d} dimensions, and there "
            f"are {n:,}: Thm 5.5 does not apply, so a rotation is assumed, not proved."
        )
    else:
        spanning = sym_spanning(F)
        numbers |= {"rank": spanning.rank, "spans": spanning.spans}
        words = f"{anchors} {spanning.rank:,} of the {needed:,} dimensions of the symmetric matrices."
        if spanning.spans and needed <= _MOST_KAPPA:
            words = f"{anchors} all {needed:,} dimensions of the symmetric matrices; {bounds}"
            if full:
                found = kappa(F, random_state=random_state)
                constant, numbers["kappa"] = found.upper, [found.lower, found.upper]
                words += f" (at best 1), is between {found.lower:.3g} and {found.upper:.3g}."
            else:
                constant = None
                words += ', takes minutes and was not computed. Pass --set theory=full (theory="full") for it.'
    return _entry("Def. 5.4", f"{stored} anchors that span the symmetric matrices", words, numbers), constant


def _entry(theorem: str, quantity: str, sentence: str, numbers: dict[str, object] | None = None) -> dict[str, Any]:
    return {"theorem": theorem, "quantity": quantity, "sentence": sentence, "numbers": numbers or {}}


def _agreement(agreement: KernelAgreement, similarities: str, theorem: str) -> dict[str, Any]:
    line = agreement.least_squares
    transformed = {
        "raw": "as they are",
        "constant": f"after the best constant ({line.intercept:+.3f})",
        "affine": f"after the best line (slope {line.slope:.2f}, constant {line.intercept:+.3f})",
    }[agreement.relation]
    level, value = max(agreement.quantiles.items())
    correlation = ""
    if agreement.correlation is not None and (agreement.relation == "raw" or "image–text" not in similarities):
        correlation = f" (correlation {agreement.correlation:.2f})"
    return _entry(
        theorem,
        f"{similarities}, {agreement.relation}",
        f"{similarities[:1].upper()}{similarities[1:]} of the two models{correlation} differ by at most "
        f"{agreement.epsilon:.3f} {transformed}; {level:.0%} by at most {value:.3f}, typically {agreement.rmse:.3f}.",
        agreement.to_dict(),
    )
