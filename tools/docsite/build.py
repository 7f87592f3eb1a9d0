"""Build the documentation site: collect the pages, build them with Zensical, and check the result.

Run ``python -m docsite.build`` in the folder ``tools``. With ``--quick``, the gallery is left out and notebooks are not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from docsite import api, check, commands, links, roles, search

ROOT = Path(__file__).resolve().parents[2]
#: Script that the theme loads on pages that are opened as files.
FETCHED_WORKER = "https://unpkg.com/iframe-worker/shim"

PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"


def main(arguments: list[str]) -> int:
    """Build the site, and return the exit code."""
    quick = "--quick" in arguments
    shutil.rmtree(PAGES, ignore_errors=True)
    collect(PAGES, run=not quick)
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tools")}, check=False)
    if done.returncode:
        return done.returncode
    own_worker(SITE)
    problems = [*check.problems(SITE, api.public_modules()), *search.problems(SITE)]
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


def own_worker(site: Path) -> None:
    """Replace the worker script of the search, which the theme would load from another host, by one on the site."""
    shutil.copyfile(Path(__file__).with_name("worker.js"), site / "assets" / "worker.js")
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if FETCHED_WORKER in text:
            up = "../" * (len(path.relative_to(site).parts) - 1)
            path.write_text(text.replace(FETCHED_WORKER, f"{up}assets/worker.js"), encoding="utf-8")


def collect(folder: Path, *, run: bool) -> None:
    """Write every page and picture of the site.

    Parameters
    ----------
    folder : Path
        Must not exist.
    run : bool
        Run the notebooks and the commands of the gallery; otherwise notebooks are written without outputs, and the gallery is left out.
    """
    for path in sorted((ROOT / "docs").rglob("*")):
        place = path.relative_to(ROOT / "docs")
        if path.is_dir() or place.parts[0] == "numbers" or path.suffix == ".py":
            continue
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = links.rewrite(path.read_text(encoding="utf-8"), f"docs/{place.as_posix()}")
            (folder / place).write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(path, folder / place)
    for source, place in links.COPIES.items():
        if source != "README.md":
            text = links.rewrite((ROOT / source).read_text(encoding="utf-8"), source)
            (folder / place).write_text(text, encoding="utf-8")
    described = {place: roles.in_markdown(text) for place, text in api.pages().items()}
    for place, text in {**described, "commands.md": commands.page()}.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    if run:
        from docsite import gallery

        gallery.make(folder / "gallery")
    from docsite import notebooks

    for path in sorted((ROOT / "docs" / "notebooks").glob("*.py")):
        notebooks.write(path, folder / "notebooks", run=run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
