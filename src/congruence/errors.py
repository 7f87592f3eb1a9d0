"""Every error and warning of congruence, in one tree: ``CongruenceError`` and ``CongruenceWarning`` are the roots.

Errors and warnings carry what is wrong and what to do as data, and each place that shows them spells the arguments in
its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any


def spell_python(name: str, value: str) -> str:
    """Write an argument as Python does."""
    return f"{name}={value or '…'}"


class Problem(Exception):
    """What is wrong and what to do about it, as data.

    ``problem`` says in one sentence what is wrong; it may be left out with an ``argument``, the value ``got`` and, in
    words, what was ``expected``. ``fix`` says in one sentence what to do, or is a tuple of alternatives. In both an
    argument or a name of the library stands in backticks: ``"Pass `force=True` to replace it."``, or ``"Use
    `congruence.refine`."``. The command line writes an argument as its own flag, and leaves out alternatives with names
    that it does not have.
    """

    def __init__(
        self,
        problem: str = "",
        fix: str | tuple[str, ...] = (),
        *,
        argument: str | None = None,
        got: object = None,
        expected: object = None,
    ) -> None:
        self.problem, self.fix = problem, fix if isinstance(fix, tuple) else (fix,) if fix else ()
        self.argument, self.got, self.expected = argument, got, expected
        super().__init__(self.message())

    def message(
        self,
        spell: Callable[[str, str], str] = spell_python,
        has: Callable[[str], bool] = lambda name: True,
        else_: str = "",
    ) -> str:
        """Return the message as text; ``spell`` writes an argument from its name and the text of its value.

        ``has`` says whether the place that shows the message has an argument or a Python object of this name, and
        ``else_`` is what to do if it has none of those in the alternatives.
        """
        problem = self.problem
        if self.argument is not None and not problem:
            problem = f"Got {spell(self.argument, repr(self.got))}; expected {self.expected}."
        fixes = [fix for fix in self.fix if all(has(name or whole) for whole, name, _ in _NAME.findall(fix))]
        fixes = fixes or ([else_] if else_ and self.fix else [*self.fix])
        text = " Or ".join([" ".join([problem, *fixes[:1]]), *(fix[:1].lower() + fix[1:] for fix in fixes[1:])])
        return _NAME.sub(lambda found: spell(found[2], found[3]) if found[2] else found[0], text)

    def __str__(self) -> str:
        return self.message()

    def __reduce__(self) -> tuple[Any, ...]:  # the default would call the class with the message alone
        make = partial(type(self), argument=self.argument, got=self.got, expected=self.expected)
        return make, (self.problem, self.fix), vars(self)


#: An argument with its value, or a name of this package, in backticks.
_NAME = re.compile(r"`(congruence\.[^`]*|(\w+)=([^`]*))`")


class CongruenceError(Problem):
    """Root of all errors that this library raises on purpose."""


class InputError(CongruenceError, ValueError):
    """The vectors or ids passed in cannot be used."""


class ShapeError(InputError):
    """An array has the wrong number of axes, rows or columns."""


class DtypeError(InputError, TypeError):
    """An array holds something other than real numbers."""


class NotFiniteError(InputError):
    """An array holds NaN or infinity."""


class ZeroRowError(InputError):
    """A row consists of zeros, usually because encoding the item failed."""


class TooFewAnchorsError(InputError):
    """There are fewer pairs than the method needs."""


class IdError(InputError):
    """Ids are missing, repeated, or have no partner in the other embeddings."""


class UnpairedError(InputError):
    """The anchors do not look paired: row i of the source and row i of the target are not the same item."""


class ParameterError(CongruenceError, ValueError):
    """An option has an invalid value."""


class SpaceMismatchError(CongruenceError, ValueError):
    """A map is applied to vectors of a space it was not fitted on."""


class DirectionError(SpaceMismatchError):
    """A map is applied to vectors that are already in its target space."""


class ModalityError(SpaceMismatchError):
    """A map is applied to a modality whose means it does not know."""


class FileError(CongruenceError, OSError):
    """A file cannot be read or written."""


class LockedError(FileError):
    """Another process is at work on a folder."""


class CorruptFileError(FileError):
    """A file is truncated, was edited, or is not what its name says."""


class VersionError(FileError):
    """A file was written by a newer version of congruence."""


class OutputExistsError(FileError):
    """The output path already exists, and overwriting was not requested."""


class StorageError(FileError):
    """The operating system refused a write, for example because the disk is full."""


class OutOfMemoryError(CongruenceError, MemoryError):
    """An operation needs more memory than is free; raised before the memory is allocated."""


class MissingExtraError(CongruenceError, ImportError):
    """An optional dependency is not installed."""


class TrainingError(CongruenceError, RuntimeError):
    """A training run cannot continue: its losses are not finite, or its checkpoint belongs to another run."""


class DatabaseError(CongruenceError, RuntimeError):
    """A database rejects a request, or its content is not what was expected."""


class DatabaseUnavailableError(DatabaseError):
    """A database does not answer, or is busy; trying again may help."""


class MigrationError(CongruenceError, RuntimeError):
    """A step of a migration is not possible in the migration's current state."""


class CongruenceWarning(Problem, UserWarning):
    """Root of all warnings issued by this library."""


class PairingWarning(CongruenceWarning):
    """The anchors, or some of them, do not look paired."""


class ProjectionWarning(CongruenceWarning):
    """The target has fewer dimensions than the source: the map is a projection and loses information."""


class DegenerateWarning(CongruenceWarning):
    """Some directions of the space are not covered by the anchors, or are constant in them."""


class DuplicateWarning(CongruenceWarning):
    """Rows have identical vectors, and are kept together in one part of a split."""


class TeacherWarning(CongruenceWarning):
    """Trained heads retrieve worse than the linear teacher they learned from."""


class AlignmentWarning(CongruenceWarning):
    """Held-out evidence does not support the map found from unpaired rows, or does not show that it is better."""


class ConvergenceWarning(CongruenceWarning):
    """Iterations ended before convergence, so the result may not be reliable."""


class NormWarning(CongruenceWarning):
    """It is unknown whether mapped rows should have unit norm, or the file format cannot record it."""


class ColumnsWarning(CongruenceWarning):
    """The output cannot hold some columns of the input table."""
