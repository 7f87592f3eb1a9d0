"""The summary of a completed migration, as plain data with a digest."""

from __future__ import annotations

import hmac
import json
import os
from pathlib import Path
from typing import Any

from congruence._utils.atomic import atomic_path
from congruence.upgrade.migrate.journal import Journal, digest_of

__all__ = ["summarize", "write_summary"]

#: Environment variable with a key: the summary is then signed with it (HMAC-SHA256).
SIGNING_KEY = "CONGRUENCE_SIGNING_KEY"


def summarize(journal: Journal) -> dict[str, Any]:
    """Return rows, checksums, the map's digest, all events, and a SHA-256 over them; signed if the environment contains a key."""
    last = journal.passes[-1] if journal.passes else {}
    summary: dict[str, Any] = {
        "place": journal.place,
        "map": journal.map_digest,
        "element_type": journal.element_type,
        "ranges": journal.ranges,
        "state": journal.state,
        "rows": last.get("rows", journal.rows),
        "checksum_old": last.get("old"),
        "checksum_new": journal.verification.get("checksum_new"),
        "verification": journal.verification,
        "resumed": journal.resumed,
        "passes": journal.passes,
        "version": journal.version,
        "events": journal.events,
    }
    summary["sha256"] = digest_of(summary)
    if key := os.environ.get(SIGNING_KEY):
        summary["hmac_sha256"] = hmac.new(key.encode(), summary["sha256"].encode(), "sha256").hexdigest()
    return summary


def write_summary(journal: Journal, folder: Path) -> None:
    """Write ``summary.json`` next to the journal. Raises StorageError."""
    text = json.dumps(summarize(journal), indent=1) + "\n"
    with atomic_path(folder / "summary.json", force=True) as temporary:
        temporary.write_text(text, encoding="utf-8")
