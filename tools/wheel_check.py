"""Build the wheel and the source distribution, check both, and run the installed wheel: ``make wheel-check``.

The library is imported and run only in a new environment and an empty folder, from which the repository cannot be
imported.
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

#: Folders that a source distribution must contain.
SOURCES = ("src", "tests", "docs", "examples", "benchmarks", "tools")

#: Maximum size of the wheel in MiB; the samples are most of it.
LARGEST = 14


def main() -> int:
    """Run all checks, and return the exit code."""
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
        run(python, "-m", "build", "--outdir", dist, ROOT)  # builds the wheel from the source distribution
        (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        problems = [*check_wheel(wheel), *check_archive(archive)]
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
            f"{wheel}[lancedb,plot]",
        )
        run_demo(python, Path(folder) / "empty")
    print(f"{wheel.name} and {archive.name} are complete, and the demo ran with Python {sys.version.split()[0]}")
    return 0


def make_environment(place: Path) -> Path:
    """Create a virtual environment, and return the path of its interpreter."""
    venv.create(place, with_pip=True)
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(*command: object, **options: object) -> str:
    """Run a command, and return its standard output; standard error is shown."""
    done = subprocess.run(
        list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8", **options
    )
    return done.stdout


def check_wheel(wheel: Path) -> list[str]:
    """Return the problems of a wheel: missing and unexpected files, its size, its license and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    expected = {name.removeprefix("src/") for name in tracked if name}
    problems = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    problems += [f"the wheel has {name}" for name in sorted(names - expected) if ".dist-info/" not in name]
    if wheel.stat().st_size > LARGEST * 2**20:
        problems.append(f"the wheel has {wheel.stat().st_size / 2**20:.1f} MiB, more than {LARGEST}")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        problems.append("the wheel lacks the license")
    version = re.search(r'__version__ = "(.*)"', (PACKAGE / "_version.py").read_text())[1]
    if metadata["Version"] != version or not metadata["Description-Content-Type"].startswith("text/markdown"):
        problems.append(f"the wheel states version {metadata['Version']}, {metadata['Description-Content-Type']}")
    return problems


def check_archive(path: Path) -> list[str]:
    """Return the files tracked by git that are missing in a source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    return [
        f"the source distribution lacks {name}"
        for name in tracked
        if (
            name.split("/")[0] in SOURCES
            or name.endswith((".md", ".toml", ".txt", ".cff", ".yml", "Makefile", "Dockerfile"))
        )
        and not name.startswith(".")
        and name not in names
    ]


def run_demo(python: Path, folder: Path) -> None:
    """Run the first commands that a new user runs, with the installed library."""
    folder.mkdir()
    program = python.parent / ("congruence.exe" if os.name == "nt" else "congruence")
    for arguments in (["--version"], ["lab", "info", "--no-devices"], ["demo"]):
        print(run(program, *arguments, cwd=folder).strip()[-400:], flush=True)
    pages = sorted(path.name for path in folder.glob("*.html"))
    assert pages, "the demo wrote no page"
    print("pages of the demo:", ", ".join(pages))


if __name__ == "__main__":
    sys.exit(main())
