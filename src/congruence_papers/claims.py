"""Rules that decide whether a paper's claim holds, evaluated on the measured numbers.

A rule is a comparison of means, such as ``text_cosine > text_cosine(quantity="before") + 0.1``. The name of a metric stands for its value after
mapping; ``series``, ``part``, ``x``, ``quantity``, ``pair`` and ``data`` in parentheses select another row. A rule is checked for every combination of
data set, pair of models, part and x, except for the keys that one of its references selects. ``x="min"`` and ``x="max"`` are the ends of a curve;
``pair="*"`` is the mean over all pairs. Without ``series``, the first measured series is used.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

from congruence._utils.display import short
from congruence.errors import ParameterError
from congruence_papers.plain import AXES, Claim, ClaimCheck, Column, Row, Rule, Verdict

__all__ = ["check_claim", "check_rule", "parse_rule"]

#: Keys over whose values a rule is checked case by case, unless a reference selects them.
_FREE: tuple[Column, ...] = ("data", "pair", "part", "x")

#: Quantities that a metric without ``quantity`` refers to.
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

#: Maximum number of failed cases to list per rule.
_LISTED = 4


def parse_rule(rule: str, where: str | Callable[[], str] = "the rules", metrics: Sequence[str] = ()) -> ast.Compare:
    """Parse and validate a rule. Nothing in it is executed.

    Parameters
    ----------
    rule : str
    where : str or callable
        Location of the rule, for the error message; a callable is called only if the rule is rejected.
    metrics : sequence of str, optional
        Metrics that are measured, if known: a rule about any other metric is rejected.

    Returns
    -------
    ast.Compare

    Raises
    ------
    ParameterError
        If the rule is not a comparison of metrics, numbers, ``+ - * /``, ``abs``, ``max`` and ``min``, or names no metric or one not in ``metrics``.
    """
    try:
        tree = ast.parse(rule, mode="eval").body
        if not isinstance(tree, ast.Compare) or not all(type(op) in _COMPARISONS for op in tree.ops):
            raise ValueError("not a comparison with >, >=, <, <= or ==")
        for side in (tree.left, *tree.comparators):
            _check(side)
        references = _references(tree)
        if not references:
            raise ValueError("it contains no metric")
        unknown = {_selection(node)[0] for node in references} - set(metrics)
        if metrics and unknown:
            raise ValueError(f"{', '.join(sorted(unknown))} is not among its metrics")
    # Python's parser raises MemoryError if expressions are nested too deeply.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        location = where if isinstance(where, str) else where()
        raise ParameterError(
            f"Got the rule {short(repr(rule), 300)} in {location} ({short(str(error), 300)}); expected a comparison such as text_cosine > text_cosine(quantity='before'). Rewrite the rule in this form."
        ) from error
    return tree


def _check(node: ast.expr) -> None:
    """Raise ValueError if an expression contains anything that a rule may not."""
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
            raise ValueError(f"{node.func.id} takes {', '.join(AXES)} by name")
        for keyword in node.keywords:
            if keyword.arg not in AXES or not isinstance(keyword.value, ast.Constant):
                raise ValueError(f"{keyword.arg} is not one of {', '.join(AXES)} with a constant")
        return
    raise ValueError(f"{ast.unparse(node)} is not allowed")


def _references(tree: ast.AST) -> list[ast.Name | ast.Call]:
    """Return the outermost node of each reference to a measured number."""
    references: list[ast.Name | ast.Call] = []
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func)
            if node.func.id not in _FUNCTIONS:
                references.append(node)
        elif isinstance(node, ast.Name) and node not in called:
            references.append(node)
    return references


def _selection(node: ast.Name | ast.Call) -> tuple[str, dict[str, object]]:
    """Return the metric of a reference, and the keys that it selects with their values."""
    if isinstance(node, ast.Name):
        return node.id, {}
    assert isinstance(node.func, ast.Name)
    return node.func.id, {str(k.arg): k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}


def _value(node: ast.Name | ast.Call, rows: Sequence[Row], case: Mapping[Column, object]) -> float | None:
    """Return the value of a reference in one case, or None if it was not measured."""
    metric, keys = _selection(node)
    quantity = keys.get("quantity")
    quantities = _VALUES if quantity is None else (quantity,)
    matching = [row for row in rows if row["metric"] == metric and row["quantity"] in quantities]
    for key in ("data", "pair", "part", "series"):
        if keys.get(key) == "*":
            continue
        if key in keys:
            matching = [row for row in matching if row[key] == keys[key]]
        elif key in case:  # scores of a model alone are recorded once for all parts, with None as the part
            matching = [row for row in matching if row[key] in (case[key], None)]
    if "series" not in keys and matching:
        matching = [row for row in matching if row["series"] == matching[0]["series"]]
    x = keys.get("x", case.get("x"))
    if x in ("min", "max"):
        values = [row["x"] for row in matching if row["x"] is not None]
        x = (min if x == "min" else max)(values) if values else None
    if x is not None:
        matching = [row for row in matching if row["x"] in (x, None)]
    if not matching or (len(matching) > 1 and "*" not in keys.values()):
        return None
    return float(sum(row["mean"] for row in matching) / len(matching))


def _evaluate(node: ast.expr, numbers: Mapping[int, float]) -> float:
    """Return the value of an expression, given those of its references by the ``id`` of their nodes."""
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
    """Check a rule in every case for which its numbers were measured.

    Parameters
    ----------
    rule : str
    rows : sequence of mapping
        Rows as returned by :meth:`congruence_papers.results.Results.rows`.

    Returns
    -------
    dict
        ``rule``; ``held``, the number of cases in which it held; ``of``, the number of cases checked; ``failed``, up to four cases in which it did not
        hold, with the value of each side.

    Raises
    ------
    ParameterError
        If the rule is invalid.

    Examples
    --------
    >>> row = {"data": "d", "pair": "a", "series": None, "part": None, "x": None, "metric": "gap", "quantity": "value", "mean": 0.9}
    >>> check_rule("gap > 0.5", [row])["held"]
    1
    """
    tree = parse_rule(rule)
    references = _references(tree)
    selected = {key for node in references for key in _selection(node)[1]}
    free = [key for key in _FREE if key not in selected]
    metrics = {_selection(node)[0] for node in references}
    cases = list(dict.fromkeys(tuple(row[key] for key in free) for row in rows if row["metric"] in metrics))
    held, checked = 0, 0
    failed: list[dict[str, object]] = []
    for values in cases:
        case = dict(zip(free, values, strict=True))
        values_or_none = {id(node): _value(node, rows, case) for node in references}
        numbers = {key: value for key, value in values_or_none.items() if value is not None}
        if len(numbers) < len(references) or not _complete(case, references, rows):
            continue
        try:
            sides = [_evaluate(side, numbers) for side in (tree.left, *tree.comparators)]
        except ZeroDivisionError:
            continue
        checked += 1
        if all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(tree.ops, sides[:-1], sides[1:], strict=True)):
            held += 1
        elif len(failed) < _LISTED:
            failed.append({**{k: v for k, v in case.items() if v is not None}, "values": [round(s, 4) for s in sides]})
    return {"rule": rule, "held": held, "of": checked, "failed": failed}


def _complete(case: Mapping[Column, object], references: Sequence[ast.Name | ast.Call], rows: Sequence[Row]) -> bool:
    """Return whether a row of exactly this case was measured. Scores of a model alone, which have no part and no x, are not sufficient."""
    for node in references:
        metric, keys = _selection(node)
        quantities = (keys["quantity"],) if "quantity" in keys else _VALUES
        for row in rows:
            if row["metric"] == metric and row["quantity"] in quantities and all(row[k] == v for k, v in case.items()):
                return True
    return False


def check_claim(paper: Claim, rows: Sequence[Row], unchecked: str | None = None) -> ClaimCheck:
    """Check a paper's claim against the measured numbers.

    Parameters
    ----------
    paper : mapping
        The ``paper`` section of a configuration; its ``rules`` are checked.
    rows : sequence of mapping
        Rows as returned by :meth:`congruence_papers.results.Results.rows`.
    unchecked : str, optional
        Reason why the claim does not apply to this run. If given, no rule is checked.

    Returns
    -------
    dict
        ``verdict``: ``"yes"`` if every rule was checked and held in every case, ``"no"`` if no rule held in any case, ``"partly"`` otherwise, and
        ``"not checked"`` if there are no rules or no numbers for them; ``why``, the reason if it was not checked, else None; and ``rules``, the
        result of :func:`check_rule` for each.

    Raises
    ------
    ParameterError
        If a rule is invalid.
    """
    if unchecked:
        return {"verdict": "not checked", "why": unchecked, "rules": []}
    rules = [check_rule(rule, rows) for rule in paper.get("rules") or []]
    held, checked = sum(rule["held"] for rule in rules), sum(rule["of"] for rule in rules)
    verdict: Verdict
    if not checked:
        verdict = "not checked"
    elif held == checked and all(rule["of"] for rule in rules):
        verdict = "yes"
    else:
        verdict = "partly" if held else "no"
    why = None
    if verdict == "not checked":
        why = "the numbers that its rules need were not measured" if rules else "the configuration has no rules for it"
    return {"verdict": verdict, "why": why, "rules": rules}
