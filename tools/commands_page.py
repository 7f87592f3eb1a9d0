"""Write the page of all commands, in typer's own form: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from typer import Context
from typer.cli import get_docs_for_click

from congruence.cli import app


def main() -> None:
    """Write the page to the path that was passed."""
    page = get_docs_for_click(obj=app, ctx=Context(app, info_name="congruence"), name="congruence", title="Commands")
    Path(sys.argv[1]).write_text(f"{page.strip()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
