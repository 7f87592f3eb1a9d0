"""From the anchors of two models to a verdict: map the store, map the queries, collect more, re-embed, or keep the old model."""

from __future__ import annotations

from congruence.upgrade.certify.certificate import Certificate, certify
from congruence.upgrade.certify.design import split_anchors
from congruence.upgrade.certify.intervals import STRATEGIES
from congruence.upgrade.certify.verdict import ACTIONS, Thresholds, Verdict
from congruence.upgrade.progressive.meter import Estimate

__all__ = ["ACTIONS", "STRATEGIES", "Certificate", "Estimate", "Thresholds", "Verdict", "certify", "split_anchors"]
