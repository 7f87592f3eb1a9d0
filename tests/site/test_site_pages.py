"""What can be said of the documentation site without building it: every page is reached, links and anchors lead somewhere, and what is made of the code is complete."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

import congruence
from congruence.cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))

from docsite import api, commands, links  # noqa: E402

PAGES = sorted(path for path in DOCS.rglob("*.md"))


class Loader(yaml.SafeLoader):
    """Reads the configuration without what it names of other packages."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def reached(nav: list) -> set[str]:
    found = set()
    for part in nav:
        value = next(iter(part.values())) if isinstance(part, dict) else part
        found |= reached(value) if isinstance(value, list) else {value}
    return found


@pytest.fixture(scope="module")
def site():
    """Give every page of the site as Markdown, but for what notebooks print."""
    made = {
        path.relative_to(DOCS).as_posix(): links.rewrite(path.read_text(), f"docs/{path.relative_to(DOCS)}")
        for path in PAGES
    }
    made |= {
        place: links.rewrite((ROOT / source).read_text(), source)
        for source, place in links.COPIES.items()
        if source != "README.md"
    }
    made |= {f"notebooks/{path.stem}.md": "" for path in (DOCS / "notebooks").glob("*.py")}
    return {**made, **api.pages(), "commands.md": commands.page()}


def test_the_navigation_reaches_every_page(site):
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    there = reached(yaml.load(text, Loader)["nav"])
    assert there | {"security.md"} == set(site)


def slug(heading: str) -> str:
    """Return the anchor that GitHub and the site give a heading."""
    if named := re.search(r"\{: #([\w. -]+?) \}", heading):
        return named[1]
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    bare = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ +(.+)$", bare, flags=re.M)} | set(
        re.findall(r'id="([^"]+)"', bare)
    )


def test_links_and_anchors_of_the_site_lead_somewhere(site):
    wrong = []
    for place, text in site.items():
        bare = re.sub(r"^```.*?^```|(?<!\[)`[^`\n]+`(?!\])", "", text, flags=re.M | re.S)
        for path, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", bare):
            target = (Path("/") / place).parent.joinpath(path).resolve().as_posix()[1:] if path else place
            if path.endswith((".html", ".svg", ".ipynb")):
                assert path.startswith("gallery/") or (DOCS / target).is_file(), (place, path)
            elif target not in site:
                wrong.append((place, path))
            elif anchor and not target.startswith(("notebooks/", "api/")) and anchor not in anchors(site[target]):
                wrong.append((place, path, anchor))
    assert not wrong


@pytest.mark.parametrize("page", [path for path in PAGES if path.parent != DOCS], ids=lambda path: path.stem)
def test_links_of_pages_in_folders_lead_somewhere_in_the_repository(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        made = target.endswith("api/index.md") or target.endswith("commands.md")
        assert made or (page.parent / target).exists(), target


def test_links_out_of_docs_are_rewritten():
    text = "[a](../README.md#speed), [`b`](../benchmarks/README.md), [c](means.md#x) `[d](../e.md)` [f](../src/congruence/maps/mlp.py)\n```\n[g](../h.md)\n```\n"
    said = links.rewrite(text, "docs/python.md")
    assert "[a](index.md), [`b`](benchmarks.md), [c](means.md#x) `[d](../e.md)`" in said
    assert "f (`src/congruence/maps/mlp.py` in the repository)\n```\n[g](../h.md)\n```" in said
    assert links.rewrite("[a](../python.md)", "docs/tutorials/x.md") == "[a](../python.md)"
    assert links.rewrite("[a](docs/python.md)", "CHANGELOG.md") == "[a](python.md)"


# ------------------------------------------------------------------ the API


def test_every_public_name_has_a_place_on_a_page():
    pages = api.pages()
    described = {found for text in pages.values() for found in re.findall(r"^::: (\S+)$", text, flags=re.M)}
    linked = {found for text in pages.values() for found in re.findall(r"\]\[(congruence\.\S+)\]", text)}
    assert linked <= described
    modules = api.public_modules()
    assert len(modules) > 200
    for module in modules.values():
        assert {f"{module.name}.{name}" for name in module.own} <= described
    shown = {name for name in modules["congruence"].taken}
    assert shown == set(congruence.__all__) - {"__version__"}
    for name in ("OrthogonalMap", "certify", "Migration", "system_info"):
        assert re.search(rf"^\| \[`{name}`\](\[|\(#)congruence\.", pages["api/index.md"], flags=re.M)


def test_every_public_module_is_read_or_left_out_for_a_reason():
    names = {
        ".".join(
            (
                "congruence",
                *(part for part in path.relative_to(api.SOURCES).with_suffix("").parts if part != "__init__"),
            )
        )
        for path in api.SOURCES.rglob("*.py")
        if not any(
            part.startswith("_") and part != "__init__" for part in path.relative_to(api.SOURCES).with_suffix("").parts
        )
    }
    left = {name for name in names if any(name == one or name.startswith(f"{one}.") for one in api.WITHOUT_PAGE)}
    assert set(api.public_modules()) == names - left
    assert all(api.WITHOUT_PAGE.values())


# ------------------------------------------------------------------ the command line


def test_every_command_and_option_is_on_the_page():
    page = commands.page()
    program = typer.main.get_command(app)
    known = {**program.commands, **{f"frame {name}": one for name, one in program.commands["frame"].commands.items()}}
    del known["frame"]
    for name, command in known.items():
        start = page.index(f"\n## congruence {name} {{:")
        end = page.find("\n## congruence ", start + 1)
        section = page[start : end if end > 0 else None]
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help" and not option.hidden:
                assert all(f"`{flag}`" in section for flag in (*option.opts, *option.secondary_opts)), (
                    name,
                    option.opts,
                )
                assert " ".join((option.help or "").split())[:20].replace("_", r"\_").replace("*", r"\*")[:8] in section
        assert "| |" not in section.replace("| argument | |", "").replace("| option | |", "")
    assert page.count("\n## congruence ") == len(known)


def test_a_section_shows_usage_defaults_and_what_is_required():
    fit = commands.section("fit", typer.main.get_command(app).commands["fit"])
    assert "```text\ncongruence fit SOURCE TARGET [OPTIONS]\n```" in fit
    assert re.search(r"^\| `--out`, `-o` TEXT \(required\) \|", fit, flags=re.M)
    assert re.search(r"^\| `--seed` INTEGER \| .* \| `0` \|$", fit, flags=re.M)
    info = commands.section("info", typer.main.get_command(app).commands["info"])
    assert re.search(r"^\| `--devices` / `--no-devices` \| .* \| `--devices` \|$", info, flags=re.M)


def test_public_names_are_assigned_alone():
    """What writes the API pages finds no name that is one of several in an assignment, and the site is not built then."""
    source = ROOT / "src/congruence"
    shown = [one for one in source.rglob("*.py") if not re.search("(^|/)_(?!_)", one.relative_to(source).as_posix())]
    assert len(shown) > 100
    for path in sorted(shown):
        tree = ast.parse(path.read_text())
        public: set[str] = set()
        together: set[str] = set()
        for node in tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name) and target.id == "__all__":
                    public = {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
                if isinstance(target, ast.Tuple):
                    together |= {one.id for one in target.elts if isinstance(one, ast.Name)}
        assert not public & together, f"{path}: {public & together}"
