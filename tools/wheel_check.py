"""Build the wheel and the source distribution, look into both, and run the installed wheel as a newcomer would: ``make wheel-check``.

Everything that imports or runs the library does so in a new environment and an empty folder, where the repository cannot be found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "congruence"

#: What a source distribution is good for: building, testing, reading, running the examples and benchmarks.
SOURCES = ("src", "tests", "docs", "examples", "benchmarks", "tools")

#: Largest wheel that is published, in MiB; the samples are most of it.
LARGEST = 14


def main() -> int:
    """Check all; return the exit code."""
    dist = ROOT / "dist"
    for old in dist.glob("congruence-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder) / "build")
        run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            ROOT / "constraints.txt",
            "build",
            "validate-pyproject",
        )
        run(python, "-m", "validate_pyproject", ROOT / "pyproject.toml")
        run(python, "-m", "build", "--outdir", dist, ROOT)  # the wheel is built of the source distribution
        (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        problems = [*look_into_wheel(wheel), *look_into_archive(archive)]
        if problems:
            print("\n".join(problems), file=sys.stderr)
            return 1
        python = make_environment(Path(folder) / "clean")
        run(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            ROOT / "constraints.txt",
            f"{wheel}[lancedb]",
        )
        use(python, Path(folder) / "empty")
    print(f"{wheel.name} and {archive.name} are complete, and the demo ran with Python {sys.version.split()[0]}")
    return 0


def make_environment(place: Path) -> Path:
    """Make an environment; return its interpreter."""
    venv.create(place, with_pip=True)
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(*command: object, **options: object) -> str:
    """Run a command; return what it printed. What it says on stderr is shown."""
    done = subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8", **options
    )
    return done.stdout


def look_into_wheel(wheel: Path) -> list[str]:
    """Return what a wheel lacks, or has too much."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    kept = subprocess.run(
        ["git", "ls-files", "src/congruence"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    expected = {name.removeprefix("src/") for name in kept if name}
    found = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    found += [f"the wheel has {name}" for name in sorted(names - expected) if ".dist-info/" not in name]
    if wheel.stat().st_size > LARGEST * 2**20:
        found.append(f"the wheel has {wheel.stat().st_size / 2**20:.1f} MiB, more than {LARGEST}")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        found.append("the wheel lacks the license")
    version = re.search(r'__version__ = "(.*)"', (PACKAGE / "_version.py").read_text())[1]
    if metadata["Version"] != version or not metadata["Description-Content-Type"].startswith("text/markdown"):
        found.append(f"the wheel says version {metadata['Version']}, {metadata['Description-Content-Type']}")
    return found


def look_into_archive(path: Path) -> list[str]:
    """Return what a source distribution lacks, of the files that git keeps."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kept = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [
        f"the source distribution lacks {name}"
        for name in kept
        if (
            name.split("/")[0] in SOURCES
            or name.endswith((".md", ".toml", ".txt", ".cff", ".yml", "Makefile", "Dockerfile"))
        )
        and not name.startswith(".")
        and name not in names
    ]


def use(python: Path, folder: Path) -> None:
    """Do with the installed library what a newcomer does first."""
    folder.mkdir()
    program = python.parent / ("congruence.exe" if os.name == "nt" else "congruence")
    for arguments in (["--version"], ["info", "--no-devices"], ["demo"]):
        print(run(program, *arguments, cwd=folder).strip()[-400:], flush=True)
    pages = sorted(path.name for path in folder.glob("*.html"))
    assert pages, "the demo wrote no page"
    print("pages of the demo:", ", ".join(pages))


if __name__ == "__main__":
    sys.exit(main())
