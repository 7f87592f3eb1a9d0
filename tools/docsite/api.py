"""Pages of the API: one for each public package or module of ``congruence``, with all public names of its modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "congruence"

#: Public modules without a page here, each with the reason.
WITHOUT_PAGE = {"congruence.cli": "its functions are the commands, which have a page of their own"}


@dataclass
class Module:
    """A public module and its public names.

    Attributes
    ----------
    name : str
    own : list of str
        Public names that the module defines.
    taken : dict of str to str
        Public names that the module imports, with the module they are imported from.
    """

    name: str
    own: list[str] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)


@cache
def public_modules() -> dict[str, Module]:
    """Return the modules whose names have no part that begins with an underscore, by name; they are parsed, not imported."""
    modules = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(("congruence", *parts))
        hidden = any(part.startswith("_") for part in parts)
        if not hidden and not any(name == other or name.startswith(f"{other}.") for other in WITHOUT_PAGE):
            modules[name] = _read(name, path)
    return modules


def _read(name: str, path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module, public, imported = Module(name), [], {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = _names(name, node.value)
    for exported in (exported for exported in public if not exported.startswith("__")):
        if (path.parent / exported).is_dir() or (
            path.stem == "__init__" and (path.parent / f"{exported}.py").is_file()
        ):
            continue  # a module of this package, which has its own section
        if exported in imported:
            module.taken[exported] = imported[exported]
        else:
            module.own.append(exported)
    return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those inside ``if`` and ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body)


def _names(name: str, node: ast.expr) -> list[str]:
    try:
        return list(ast.literal_eval(node))
    except ValueError:  # the list is computed, as in congruence/__init__.py
        from importlib import import_module

        return list(import_module(name).__all__)


def pages() -> dict[str, str]:
    """Return every page of the API as Markdown, by its path under ``docs``; docstrings are not converted."""
    modules = public_modules()
    groups = defaultdict(list)
    for name in modules:
        groups[".".join(name.split(".")[:2])].append(name)
    top = groups.pop("congruence")
    written = {"api/index.md": _index(modules, groups)}
    for name, members in groups.items():
        written[f"api/{name.split('.')[1]}.md"] = _page(name, [modules[member] for member in members])
    assert top == ["congruence"]
    return written


def _index(modules: dict[str, Module], groups: dict[str, list[str]]) -> str:
    lines = [
        "# API",
        "",
        "Everything below is imported when it is first used, so `import congruence` is fast. Names and modules that begin with an underscore are not part of "
        "the API.",
        "",
        "## congruence",
        "",
        *_table(modules["congruence"], modules),
        "",
        "## Modules",
        "",
        "| module | content |",
        "| --- | --- |",
    ]
    for name in sorted(groups):
        lines.append(f"| [`{name}`]({name.split('.')[1]}.md) | {_first_line(name)} |")
    return "\n".join(lines) + "\n"


def _page(name: str, modules: list[Module]) -> str:
    """Return the page of a package: its own names, and then its modules with the names that each defines."""
    lines = [f"# {name}", "", _docstring(name), ""]
    for module in modules:
        if not (module.own or module.taken):
            continue
        if module.name != name:
            lines += [f"## {module.name} {{: #{module.name} }}", "", _docstring(module.name), ""]
        if module.taken:
            lines += [*_table(module, public_modules()), ""]
        for own in module.own:
            level = 2 if module.name == name else 3
            lines += [f"::: {module.name}.{own}", "    options:", f"      heading_level: {level}", ""]
    return "\n".join(lines)


def _table(module: Module, modules: dict[str, Module]) -> list[str]:
    """Return a table of the names that a package imports from its modules, each with a link to its description."""
    lines = ["| name | described in |", "| --- | --- |"]
    homes = {name: _home(name, origin, modules) for name, origin in module.taken.items()}
    for name, home in sorted(homes.items(), key=lambda item: item[0].lower()):
        if home in modules:
            lines.append(f"| [`{name}`][{home}.{name}] | `{home}` |")
        else:
            lines.append(f"| [`{name}`](#{module.name}.{name}) | below |")
    hidden = [name for name, home in homes.items() if home not in modules]
    lines += [""]
    for name in hidden:
        lines += [f"::: {module.name}.{name}", "    options:", "      heading_level: 3", ""]
    return lines


def _home(name: str, home: str, modules: dict[str, Module]) -> str:
    """Return the module that defines a name, following the imports of public modules."""
    while home in modules and name in modules[home].taken:
        home = modules[home].taken[name]
    return home


def _path(name: str) -> Path:
    path = SOURCES.parent / Path(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _docstring(name: str) -> str:
    return ast.get_docstring(ast.parse(_path(name).read_text(encoding="utf-8"))) or ""


def _first_line(name: str) -> str:
    return _docstring(name).partition("\n")[0]
