"""From the anchors of two models to a verdict: which strategy to take, and what it costs in quality."""

from __future__ import annotations

from congruence.upgrade.certify.certificate import Certificate, certify
from congruence.upgrade.certify.design import split_anchors
from congruence.upgrade.certify.estimates import STRATEGIES
from congruence.upgrade.certify.scoring import STEPS
from congruence.upgrade.certify.verdict import ACTIONS, EXIT_CODES, Criteria, Verdict, name_strategy
from congruence.upgrade.progressive.meter import Estimate

__all__ = [
    "ACTIONS",
    "EXIT_CODES",
    "STEPS",
    "STRATEGIES",
    "Certificate",
    "Criteria",
    "Estimate",
    "Verdict",
    "certify",
    "name_strategy",
    "split_anchors",
]
