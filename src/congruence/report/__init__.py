"""Reports: one self-contained HTML page about a map or a certificate, from data kept apart from markup."""

from congruence.report.certificate import render_certificate, write_certificate
from congruence.report.render import render, write_report
from congruence.report.summary import summarize

__all__ = ["render", "render_certificate", "summarize", "write_certificate", "write_report"]
