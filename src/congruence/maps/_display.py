"""Display of a map: like any estimator before the fit, with its models and held-out scores after it."""

from __future__ import annotations

from typing import Any

from congruence._utils.display import as_html, as_text
from congruence.embeddings import Space
from congruence.maps._estimator import BaseEstimator


class DisplayMixin(BaseEstimator):
    """Base class of maps that replaces scikit-learn's display, in a terminal and in a notebook, once the map is fitted."""

    source_space_: Space
    target_space_: Space
    scores_: dict[str, Any]
    facts_: dict[str, Any]
    n_pairs_: int

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        call = super().__repr__(N_CHAR_MAX)
        return as_text(" ".join(call.split()), self._shown()) if self._solved() else call

    def _repr_html_inner(self) -> str:  # scikit-learn's _repr_html_ returns this if its display option is "diagram"
        return self._html() if self._solved() else super()._repr_html_inner()

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle and self._solved():
            bundle["text/html"] = self._html()
        return bundle

    def _solved(self) -> bool:
        # Bypass __getattr__: a display must not trigger the solve that follows partial_fit.
        return "facts_" in vars(self)

    def _html(self) -> str:
        return as_html(type(self).__name__, self._shown())

    def _shown(self) -> dict[str, str]:
        """Return the entries of a fitted map's display: its models, its pairs and its held-out scores."""
        facts = {"source": str(self.source_space_), "target": str(self.target_space_)}
        pairs = f"{self.n_pairs_:,} pairs" if self.n_pairs_ else "an unknown number of pairs"
        pairs += self._matches_note()
        if "is_isometry" in self.facts_:
            form = "isometry" if self.facts_["is_isometry"] else f"mean gain {self.facts_['mean_gain']:.2f}"
            form += ", a projection" if self.facts_["is_projection"] else ""
            pairs += f", {self.facts_['rank']} of {self.facts_['directions']} directions covered, {form}"
        facts["fitted on"] = pairs
        shown = {
            "held_out_retrieval_at_1": "retrieval@1",
            "held_out_retrieval_back_at_1": "target to source @1",
            "held_out_recall_at_10": "recall@10",
        }
        # No cosine: it means little without its controls, which are in ``scores_``.
        heldout = [
            f"{label} {self.scores_[key]:.3f}" for key, label in shown.items() if self.scores_.get(key) is not None
        ]
        if heldout:
            known = self.scores_.get("held_out_pairs")
            facts["held out"] = ("" if known is None else f"{known:,} pairs: ") + ", ".join(heldout)
        else:
            facts["held out"] = "nothing measured: congruence.fit(…, holdout=0.1) holds pairs out and scores them"
        return facts

    def _matches_note(self) -> str:
        """Return a note on how many pairs are matches found among unpaired rows, since ``n_pairs_`` counts them too; empty if none."""
        for name in ("refinement", "alignment"):
            record = self.scores_.get(name)
            if not isinstance(record, dict):
                continue
            matches, known = record.get("matches"), record.get("n_pairs", 0)
            if isinstance(matches, int) and isinstance(known, int) and self.n_pairs_ == known + matches:
                return f", {matches:,} of them matches of unpaired rows"
        return ""
