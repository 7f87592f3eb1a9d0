"""Print a certificate as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence.cli._base import number, print_table, say

if TYPE_CHECKING:
    from congruence.upgrade.certify import Certificate, Estimate

__all__ = ["print_certificate"]


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate as tables, the verdict first."""
    from congruence.upgrade.certify import ACTIONS

    verdict = certificate.verdict
    say(f"Verdict: {verdict.headline}")
    say(f"{verdict.reason[:1].upper()}{verdict.reason[1:]}")
    print("Share of draws: " + ", ".join(f"{ACTIONS[a]} {share:.0%}" for a, share in verdict.confidence.items()))
    if not verdict.settled:
        print(
            "No action has 90% of the draws: the evidence does not decide between these actions. Encode more "
            "items to narrow it down."
        )
    facts = certificate.facts
    say(f"{facts['source']} → {facts['target']}; {facts['data']}; {facts['date']}, seed {facts['seed']}")
    say(f"Map: {certificate.choice['name']}; {certificate.how_to_fit}")
    print()

    print_table(
        f"{certificate.n_anchors} anchors ({' and '.join(certificate.fitted)}), {certificate.n_queries} items "
        "scored; 95 % intervals",
        ["measure", "keep the old model", "map the store", "map the queries", "re-embed", "chance", "random rotation"],
        [
            [
                task,
                *(_cell(scores.get(strategy)) for strategy in ("keep", "stored", "queries")),
                "1 by definition" if task in certificate.controls else _cell(scores.get("re-embed")),
                *(number(certificate.controls.get(task, {}).get(control)) for control in ("chance", "random_rotation")),
            ]
            for task, scores in certificate.strategies.items()
        ],
    )
    _print_costs(certificate)
    rows = [[f"{name.replace('/', ' ÷ ')}, {certificate.task}", _cell(e)] for name, e in certificate.retention.items()]
    for modality, e in certificate.cosines.items():
        controls = certificate.controls.get(f"cosine/{modality}", {})
        rows.append([f"cosine of mapped {modality} and target {modality}", _cell(e)])
        rows.append([f"  control: every {modality} at the target's mean", number(controls.get("constant"))])
        rows.append(["  control: a random rotation about the correct means", number(controls.get("random_rotation"))])
    rows += [
        [f"{m} variance in directions the anchors cover", f"{share:.1%}"] for m, share in certificate.covered.items()
    ]
    print_table("", ["", "value"], rows)
    print_table(
        f"More anchors (now {certificate.n_anchors})",
        ["more", f"{certificate.task} gains", "at most", "cosine gains", "at most"],
        [
            [f"{int(g['more']):,}", *(number(g[k]) for k in ("score", "score_at_most", "cosine", "cosine_at_most"))]
            for g in certificate.gains
        ],
    )
    if certificate.theory:
        print("Theory")
        for entry in certificate.theory:
            say(f"  {entry['sentence']}")
        print()
    for note in certificate.notes:
        say(note)


def _print_costs(certificate: Certificate) -> None:
    """Print the expected quality and cost of each strategy."""
    names = {"keep": "keep the old model", "map": "map the store", "progressive": "map, re-embed {share:.0%}"}
    rows = []
    for cost in certificate.costs:
        rows.append(
            [
                names.get(cost["strategy"], "re-embed").format(share=cost["share"]),
                _cell(cost["score"]),
                f"{cost['share']:.0%} of the store" if cost["items"] is None else f"{cost['items']:,}",
                "–" if cost["minutes"] is None else number(cost["minutes"], 1),
                "–" if cost["price"] is None else f"{cost['price']:,.2f}",
            ]
        )
    print_table("Cost of each strategy", ["strategy", certificate.task, "items to encode", "minutes", "price"], rows)
    if certificate.progressive.get("sentence"):
        say(certificate.progressive["sentence"])
        print()


def _cell(estimate: Estimate | None) -> str:
    """Format a score with its interval; an unknown score is a dash."""
    return "–" if estimate is None else f"{number(estimate.value)} ({number(estimate.low)} … {number(estimate.high)})"
