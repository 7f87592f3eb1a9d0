"""Ask the advisory database of PyPI about every pinned version; fail when one has a known vulnerability."""

from __future__ import annotations

import json
import subprocess
import sys


def main(file: str) -> int:
    """Audit a file of pinned versions; return the exit code."""
    line = [
        sys.executable,
        "-m",
        "pip_audit",
        "-r",
        file,
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        found = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"audit: the advisory database cannot be reached; NOTHING WAS AUDITED\n{run.stderr.strip()[-300:]}")
        return 0
    skipped = [one["name"] for one in found if "skip_reason" in one]
    bad = [one for one in found if one.get("vulns")]
    for one in bad:
        for vulnerability in one["vulns"]:
            print(
                f"{one['name']} {one['version']}: {vulnerability['id']}, fixed in "
                f"{', '.join(vulnerability['fix_versions']) or 'none'}"
            )
    audited = len(found) - len(skipped)
    if not audited:
        print(
            f"audit: the advisory database knows none of {len(found)} packages, so it was not reached; NOTHING "
            "WAS AUDITED"
        )
        return 0
    print(f"audit: {audited} packages, {len(bad)} vulnerable; {len(skipped)} not in the database {skipped or ''}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
