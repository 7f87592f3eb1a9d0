"""What a release is made of agrees with itself: metadata, versions, workflows, citation, container."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import congruence

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

if not WORKFLOWS:
    pytest.skip("not a clone: a source distribution has no workflows", allow_module_level=True)


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_names_this_version_license_and_no_address():
    cited = load("CITATION.cff")
    assert cited["version"] == congruence.__version__
    assert cited["license"] == PROJECT["license"]
    assert not {"url", "repository", "repository-code", "doi"} & set(cited), "an address must lead somewhere first"
    assert "urls" not in PROJECT


def test_no_address_is_invented():
    """There is no public repository, site or package yet: whatever looks like the project's own address leads nowhere."""
    own = re.compile(
        r"(?:github\.com/|gitlab\.com/|pypi\.org/project/|//)congruence\b|congruence\.(?:io|dev|org|readthedocs)"
    )
    pages = [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert not [path.name for path in pages if own.search(path.read_text(encoding="utf-8"))]


def test_every_python_that_is_claimed_is_tested():
    claimed = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert claimed == {"3.11", "3.12", "3.13"}
    for name, job in (("tests.yml", "test"), ("wheels.yml", "check")):
        assert set(load(f".github/workflows/{name}")["jobs"][job]["strategy"]["matrix"]["python"]) == claimed
    assert PROJECT["requires-python"] == f">={min(claimed)}"


def test_what_builds_the_site_is_pinned_and_the_two_files_of_pins_do_not_disagree():
    pins = {}
    for name in ("constraints.txt", "constraints-docs.txt"):
        found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / name).read_text(), flags=re.M)
        own = {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}
        assert not own.keys() & pins.keys()
        pins |= own
    asked = [re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"]["docs"]]
    assert set(asked) - {"congruence"} <= pins.keys()


def test_workflows_call_targets_that_exist_and_ci_calls_them_too():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    called = {found for path in WORKFLOWS for found in re.findall(r"\bmake ([a-z-]+)", path.read_text())}
    ci = set(re.findall(r"^make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), flags=re.M))
    assert called <= targets
    assert called == ci


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_do_no_more_than_it_needs(path):
    flow = yaml.safe_load(path.read_text())
    assert flow["permissions"] == {"contents": "read"}
    rights = {name: set(job.get("permissions", {})) for name, job in flow["jobs"].items()}
    allowed = {"release.yml": {"publish": {"id-token"}}, "docs.yml": {"deploy": {"pages", "id-token"}}}.get(
        path.name, {}
    )
    assert {name: right for name, right in rights.items() if right} == allowed
    for job in flow["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
    assert "secrets." not in path.read_text(), "publishing is trusted, without a token"


def test_pre_commit_runs_what_lint_runs():
    hooks = [hook["entry"] for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^LINT := (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)[1]
    for tool in ("ruff check", "ruff format", "mypy", "lint-imports"):
        assert any(f".venv/bin/{tool}" in hook for hook in hooks)
        assert tool.split()[0] in lint


def test_the_container_serves_as_a_user_without_rights():
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER 10001$", text, flags=re.M)
    extras = re.search(r"^ARG EXTRAS=(.*)$", text, flags=re.M)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "/healthz" in text
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.M)
    let_in = (ROOT / ".dockerignore").read_text()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name}" in let_in


def test_issue_forms_ask_for_the_report_of_info():
    for name in ("bug", "number"):
        body = load(f".github/ISSUE_TEMPLATE/{name}.yml")["body"]
        assert any("congruence info" in field["attributes"]["label"] for field in body)
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_every_extra_is_on_the_page_of_installing():
    page = (ROOT / "docs" / "install.md").read_text()
    for extra in set(PROJECT["optional-dependencies"]) - {"test", "docs"}:
        assert f"`{extra}`" in page, extra
