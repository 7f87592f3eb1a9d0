"""From the anchors of two models to a verdict: map the store, map the queries, collect more, re-embed, or keep the old model."""

from __future__ import annotations

from congruence.upgrade._estimate import Estimate
from congruence.upgrade.certify._certificate import Certificate
from congruence.upgrade.certify.anchors import split_anchors
from congruence.upgrade.certify.certification import certify
from congruence.upgrade.certify.measured import STRATEGIES
from congruence.upgrade.certify.verdict import ACTIONS, Thresholds, Verdict

__all__ = ["ACTIONS", "STRATEGIES", "Certificate", "Estimate", "Thresholds", "Verdict", "certify", "split_anchors"]
