"""Pages of the API: one a public package or module of ``congruence``, with every name that its modules make public."""

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
    """A public module: its names, and where those that it takes from others are defined.

    Attributes
    ----------
    name : str
    own : list of str
        Public names that are defined in it.
    taken : dict of str to str
        Public names that it imports, with the module they are imported from.
    """

    name: str
    own: list[str] = field(default_factory=list)
    taken: dict[str, str] = field(default_factory=dict)


@cache
def public_modules() -> dict[str, Module]:
    """Return every module of which no part of the name begins with an underscore, read without importing it."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(("congruence", *parts))
        hidden = any(part.startswith("_") for part in parts)
        if not hidden and not any(name == one or name.startswith(f"{one}.") for one in WITHOUT_PAGE):
            found[name] = _read(name, path)
    return found


def _read(name: str, path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module, public, imported = Module(name), [], {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            public = _names(name, node.value)
    for one in (name for name in public if not name.startswith("__")):
        if (path.parent / one).is_dir() or (path.stem == "__init__" and (path.parent / f"{one}.py").is_file()):
            continue  # a module of this package, with a section of its own
        if one in imported:
            module.taken[one] = imported[one]
        else:
            module.own.append(one)
    return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those for type checkers and in ``try`` among them."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body)


def _names(name: str, node: ast.expr) -> list[str]:
    try:
        return list(ast.literal_eval(node))
    except ValueError:  # the package itself makes its list of a table
        from importlib import import_module

        return list(import_module(name).__all__)


def pages() -> dict[str, str]:
    """Return every page of the API as Markdown, by its place under ``docs``; docstrings as they stand."""
    modules = public_modules()
    groups = defaultdict(list)
    for name in modules:
        groups[".".join(name.split(".")[:2])].append(name)
    top = groups.pop("congruence")
    written = {"api/index.md": _index(modules, groups)}
    for name, members in groups.items():
        written[f"api/{name.split('.')[1]}.md"] = _page(name, [modules[one] for one in members])
    assert top == ["congruence"]
    return written


def _index(modules: dict[str, Module], groups: dict[str, list[str]]) -> str:
    lines = [
        "# API",
        "",
        "Everything below is imported when it is first used: `import congruence` costs next to nothing. Names and modules that begin with an underscore are "
        "no part of it.",
        "",
        "## congruence",
        "",
        *_table(modules["congruence"], modules),
        "",
        "## Modules",
        "",
        "| module | its idea |",
        "| --- | --- |",
    ]
    for name in sorted(groups):
        lines.append(f"| [`{name}`]({name.split('.')[1]}.md) | {_first_line(name)} |")
    return "\n".join(lines) + "\n"


def _page(name: str, modules: list[Module]) -> str:
    """Write a package: what it offers itself, and then its modules with what each defines."""
    lines = [f"# {name}", "", _docstring(name), ""]
    for module in modules:
        if not (module.own or module.taken):
            continue
        if module.name != name:
            lines += [f"## {module.name} {{: #{module.name} }}", "", _docstring(module.name), ""]
        if module.taken:
            lines += [*_table(module, public_modules()), ""]
        for one in module.own:
            level = 2 if module.name == name else 3
            lines += [f"::: {module.name}.{one}", "    options:", f"      heading_level: {level}", ""]
    return "\n".join(lines)


def _table(module: Module, modules: dict[str, Module]) -> list[str]:
    """List names that a package takes from its modules, each with a link to where it is described."""
    lines = ["| name | described in |", "| --- | --- |"]
    for name, home in sorted(module.taken.items(), key=lambda item: item[0].lower()):
        while home in modules and name in modules[home].taken:
            home = modules[home].taken[name]
        if home in modules:
            lines.append(f"| [`{name}`][{home}.{name}] | `{home}` |")
        else:
            lines.append(f"| [`{name}`](#{module.name}.{name}) | below |")
    hidden = [name for name, home in module.taken.items() if _home(name, home, modules) not in modules]
    lines += [""]
    for name in hidden:
        lines += [f"::: {module.name}.{name}", "    options:", "      heading_level: 3", ""]
    return lines


def _home(name: str, home: str, modules: dict[str, Module]) -> str:
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
