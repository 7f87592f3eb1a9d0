"""Reports: one self-contained HTML page about a map, from data kept apart from markup."""

from congruence.report.render import render, write_report
from congruence.report.summary import summarize

__all__ = ["render", "summarize", "write_report"]
