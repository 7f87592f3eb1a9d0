"""The HTML page of a certificate."""

from __future__ import annotations

from congruence.report.rendering import fill, svg
from congruence.upgrade.certify import ACTIONS, Certificate

_NAMES = {"keep": "keep the old model", "stored": "map the store", "queries": "map the queries", "re-embed": "re-embed"}

#: Names of the strategies in the table of costs.
_STRATEGIES = {
    "keep": "keep the old model",
    "map": "map the store",
    "progressive": "map, re-embed {}",
    "re-embed": "re-embed everything",
}

#: The next step, by verdict.
_NEXT = {
    "map": "fit the map ({fit}), write the mapped store (congruence transform), and query it with the target model.",
    "queries": "fit the map ({fit}), leave the store as it is, and map each query of the target model to the source "
    "model's space.",
    "progressive": "fit the map ({fit}), and run congruence migrate with it, then reembed with --share {share}.",
    "collect": "encode more items with both models, and certify again.",
    "re-embed": "encode the store again with the target model.",
    "keep": "leave store and queries as they are.",
}


def render_certificate(certificate: Certificate) -> str:
    """Return a certificate as one page."""
    verdict = certificate.verdict
    level = {"map": "passes", "queries": "passes", "progressive": "passes", "collect": "partial"}.get(
        verdict.action, "fails"
    )
    overlap = next((name for name in certificate.strategies if name.startswith("overlap@")), certificate.task)
    return fill(
        "certificate.html",
        c=certificate,
        level="" if verdict.action == "keep" else level,
        next=_NEXT[verdict.action].format(fit=certificate.how_to_fit, share=verdict.share),
        actions=ACTIONS,
        names=_NAMES,
        costs=_STRATEGIES,
        plots={
            "strategies": {
                task: svg(certificate.plot, task=task, title=f"{task} of each strategy")
                for task in dict.fromkeys([certificate.task, overlap])
            },
            "curve": svg(certificate.plot_learning_curve, title=f"{certificate.task} by number of anchors"),
        },
    )
