"""Rules that say when a paper's claim holds, evaluated on the measured numbers.

A rule is a comparison of means, such as ``text_cosine > text_cosine(quantity="before") + 0.1``. A metric's name stands for its value after the map;
``series``, ``part``, ``x``, ``quantity``, ``pair`` and ``data`` in parentheses pick another row. What no reference of a rule picks is gone through: the
rule is checked for each pair of models, each data set, each part and each x. ``x="min"`` and ``x="max"`` are the ends of a curve; ``pair="*"`` is
the mean over all pairs. Where the series is left out it is the first one that was measured.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

from congruence._utils.display import short
from congruence.errors import ParameterError
from congruence.papers.plain import Claim, Column, Held, Row, Rule, Verdict

__all__ = ["check_claim", "check_rule", "parse_rule"]

#: Keys of a row that a reference may pick.
PICKED: tuple[Column, ...] = ("data", "pair", "series", "part", "x", "quantity")

#: Keys that a rule is checked for one by one unless a reference picks them.
_FREE: tuple[Column, ...] = ("data", "pair", "part", "x")

#: Quantities that a bare name stands for.
_VALUES = ("after", "value", "count")

_FUNCTIONS: dict[str, Callable[[list[float]], float]] = {"abs": lambda values: abs(values[0]), "max": max, "min": min}
_ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type, Callable[[float, float], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
}

#: Most cases that are listed of a rule that fails.
_LISTED = 4


def parse_rule(rule: str, where: str | Callable[[], str] = "the rules", metrics: Sequence[str] = ()) -> ast.Compare:
    """Read a rule and refuse what is none; nothing in it is ever executed.

    Parameters
    ----------
    rule : str
    where : str or callable
        For the message; a function is called for a rule that is refused.
    metrics : sequence of str, optional
        What is measured, where that is known: a rule about anything else is refused.

    Returns
    -------
    ast.Compare

    Raises
    ------
    ParameterError
        Not a comparison of metrics, numbers, ``+ - * /``, ``abs``, ``max`` and ``min``.
    """
    try:
        tree = ast.parse(rule, mode="eval").body
        if not isinstance(tree, ast.Compare) or not all(type(op) in _COMPARISONS for op in tree.ops):
            raise ValueError("no comparison by >, >=, <, <= or ==")
        for side in (tree.left, *tree.comparators):
            _check(side)
        if not _references(tree):
            raise ValueError("no metric in it")
        strange = {_picked(node)[0] for node in _references(tree)} - set(metrics)
        if metrics and strange:
            raise ValueError(f"{', '.join(sorted(strange))} is not among its metrics")
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # the last where Python's parser nests too deeply
        place = where if isinstance(where, str) else where()
        raise ParameterError(
            f"Got the rule {short(repr(rule), 300)} in {place} ({short(str(error), 300)}); expected a comparison such as text_cosine > text_cosine(quantity='before'). Write the rule so."
        ) from error
    return tree


def _check(node: ast.expr) -> None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    if isinstance(node, ast.Name):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _check(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _check(node.left)
        return _check(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in _FUNCTIONS:
            if node.keywords or not node.args or (node.func.id == "abs" and len(node.args) > 1):
                raise ValueError(f"{node.func.id} takes {'one value' if node.func.id == 'abs' else 'values'}")
            for argument in node.args:
                _check(argument)
            return
        if node.args:
            raise ValueError(f"{node.func.id} takes {', '.join(PICKED)} by name")
        for keyword in node.keywords:
            if keyword.arg not in PICKED or not isinstance(keyword.value, ast.Constant):
                raise ValueError(f"{keyword.arg}: none of {', '.join(PICKED)} with a constant")
        return
    raise ValueError(f"{ast.unparse(node)} is not allowed")


def _references(tree: ast.AST) -> list[ast.Name | ast.Call]:
    """Return the references to measured numbers, the outer node of each."""
    found: list[ast.Name | ast.Call] = []
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            named.add(node.func)
            if node.func.id not in _FUNCTIONS:
                found.append(node)
        elif isinstance(node, ast.Name) and node not in named:
            found.append(node)
    return found


def _picked(node: ast.Name | ast.Call) -> tuple[str, dict[str, object]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    assert isinstance(node.func, ast.Name)
    return node.func.id, {str(k.arg): k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}


def _value(node: ast.Name | ast.Call, rows: Sequence[Row], case: Mapping[Column, object]) -> float | None:
    """Return the number a reference stands for in one case, or None where it was not measured."""
    metric, keys = _picked(node)
    found = [row for row in rows if row["metric"] == metric]
    quantity = keys.get("quantity")
    found = [row for row in found if row["quantity"] == quantity or (quantity is None and row["quantity"] in _VALUES)]
    for key in ("data", "pair", "part", "series"):
        if keys.get(key) == "*":
            continue
        if key in keys:
            found = [row for row in found if row[key] == keys[key]]
        elif key in case:  # what a model reaches alone is noted once for all parts
            found = [row for row in found if row[key] in (case[key], None)]
    if "series" not in keys and found:
        found = [row for row in found if row["series"] == found[0]["series"]]
    wanted = keys.get("x", case.get("x"))
    if wanted in ("min", "max"):
        every = [row["x"] for row in found if row["x"] is not None]
        wanted = (min if wanted == "min" else max)(every) if every else None
    if wanted is not None:
        found = [row for row in found if row["x"] in (wanted, None)]
    if not found or (len(found) > 1 and "*" not in keys.values()):
        return None
    return float(sum(row["mean"] for row in found) / len(found))


def _evaluate(node: ast.expr, numbers: Mapping[int, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, numbers)
    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](_evaluate(node.left, numbers), _evaluate(node.right, numbers))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id]([_evaluate(argument, numbers) for argument in node.args])
    return numbers[id(node)]


def check_rule(rule: str, rows: Sequence[Row]) -> Rule:
    """Check a rule wherever it can be checked.

    Parameters
    ----------
    rule : str
    rows : sequence of mapping
        Of :meth:`congruence.papers.results.Results.rows`.

    Returns
    -------
    dict
        ``rule``; ``held``, the number of cases in which it held, ``of`` how many; ``failed``, some of the others with both sides' values.

    Raises
    ------
    ParameterError
        The rule is none.

    Examples
    --------
    >>> row = {"data": "d", "pair": "a", "series": None, "part": None, "x": None, "metric": "gap", "quantity": "value", "mean": 0.9}
    >>> check_rule("gap > 0.5", [row])["held"]
    1
    """
    tree = parse_rule(rule)
    references = _references(tree)
    picked = {key for node in references for key in _picked(node)[1]}
    free = [key for key in _FREE if key not in picked]
    mine = {_picked(node)[0] for node in references}
    cases = list(dict.fromkeys(tuple(row[key] for key in free) for row in rows if row["metric"] in mine))
    held, of = 0, 0
    failed: list[dict[str, object]] = []
    for values in cases:
        case = dict(zip(free, values, strict=True))
        found = {id(node): _value(node, rows, case) for node in references}
        numbers = {key: value for key, value in found.items() if value is not None}
        if len(numbers) < len(found) or not _complete(case, references, rows):
            continue
        try:
            sides = [_evaluate(side, numbers) for side in (tree.left, *tree.comparators)]
        except ZeroDivisionError:
            continue
        of += 1
        if all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(tree.ops, sides[:-1], sides[1:], strict=True)):
            held += 1
        elif len(failed) < _LISTED:
            failed.append({**{k: v for k, v in case.items() if v is not None}, "values": [round(s, 4) for s in sides]})
    return {"rule": rule, "held": held, "of": of, "failed": failed}


def _complete(case: Mapping[Column, object], references: Sequence[ast.Name | ast.Call], rows: Sequence[Row]) -> bool:
    """Say whether some reference of the case is of exactly this case: what models reach alone makes none of its own."""
    for node in references:
        metric, keys = _picked(node)
        quantities = (keys["quantity"],) if "quantity" in keys else _VALUES
        for row in rows:
            if row["metric"] == metric and row["quantity"] in quantities and all(row[k] == v for k, v in case.items()):
                return True
    return False


def check_claim(paper: Claim, rows: Sequence[Row], unchecked: str | None = None) -> Held:
    """Check a paper's claim on measured numbers.

    Parameters
    ----------
    paper : mapping
        Of a configuration: its ``rules``.
    rows : sequence of mapping
    unchecked : str, optional
        Why the claim does not apply to this run; no rule is checked then.

    Returns
    -------
    dict
        ``verdict``: ``"yes"`` if every rule held in every case, ``"no"`` if none held in any, ``"partly"`` otherwise, ``"not checked"`` without
        rules or numbers for them; ``why``, the reason where it was not checked; and ``rules``, see :func:`check_rule`.
    """
    if unchecked:
        return {"verdict": "not checked", "why": unchecked, "rules": []}
    rules = [check_rule(rule, rows) for rule in paper.get("rules") or []]
    held, of = sum(rule["held"] for rule in rules), sum(rule["of"] for rule in rules)
    verdict: Verdict
    if not of:
        verdict = "not checked"
    elif held == of and all(rule["of"] for rule in rules):
        verdict = "yes"
    else:
        verdict = "partly" if held else "no"
    why = None
    if verdict == "not checked":
        why = "nothing that it speaks of was measured" if rules else "the configuration has no rule for it"
    return {"verdict": verdict, "why": why, "rules": rules}
