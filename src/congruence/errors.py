"""Everything congruence raises or warns about, in one tree.

::

    CongruenceError
    ├── InputError (ValueError)            the numbers or ids handed in cannot be used
    │   ├── ShapeError                     1-D, empty, rows or widths that do not fit together
    │   ├── DtypeError (TypeError)         text, objects, complex numbers
    │   ├── NotFiniteError                 NaN or infinity
    │   ├── ZeroRowError                   a row of zeros: a failed encoding
    │   ├── TooFewAnchorsError             fewer than two usable pairs
    │   ├── IdError                        ids missing, repeated or without a partner
    │   └── UnpairedError                  anchors that do not look paired at all
    ├── ParameterError (ValueError)        an option has a value it cannot have
    ├── SpaceMismatchError (ValueError)    a map is used on vectors of another space
    │   ├── DirectionError                 … on vectors of its own target
    │   └── ModalityError                  … on a modality it has no means for
    ├── FileError (OSError)                a file cannot be read or written
    │   ├── CorruptFileError               truncated, edited, or not what its name says
    │   ├── VersionError                   written by a newer congruence
    │   ├── OutputExistsError              the output is there already
    │   └── StorageError                   the disk is full, or refuses
    ├── OutOfMemoryError (MemoryError)     something is larger than the memory that is free
    ├── MissingExtraError (ImportError)    an optional dependency is not installed
    ├── TrainingError (RuntimeError)       a training run cannot go on
    ├── DatabaseError (RuntimeError)       a database refuses, or holds something else than expected
    │   └── DatabaseUnavailableError       … does not answer, or is busy
    └── MigrationError (RuntimeError)      a step of a migration is not possible from where it stands

    CongruenceWarning (UserWarning)
    ├── PairingWarning                     anchors, or some of them, do not look paired
    ├── ProjectionWarning                  the map loses dimensions: it is no isometry
    ├── DegenerateWarning                  the anchors leave directions unprobed or constant
    ├── DuplicateWarning                   rows are identical, and are kept in one part of a split
    ├── TeacherWarning                     trained heads retrieve worse than the teacher they learned from
    ├── AlignmentWarning                   unpaired rows gave no map, or no better one, by its own evidence
    ├── ConvergenceWarning                 iterations ended before their result can be relied on
    ├── NormWarning                        whether mapped rows should have unit norm is not known, or not in the file
    └── ColumnsWarning                     the output has no room for some of a table's columns

Every message follows "Got …; expected …. Do this.", where the last sentence names the argument, flag or column to change.
"""

from __future__ import annotations

__all__ = [
    "AlignmentWarning",
    "ColumnsWarning",
    "CongruenceError",
    "CongruenceWarning",
    "ConvergenceWarning",
    "CorruptFileError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DegenerateWarning",
    "DirectionError",
    "DtypeError",
    "DuplicateWarning",
    "FileError",
    "IdError",
    "InputError",
    "MigrationError",
    "MissingExtraError",
    "ModalityError",
    "NormWarning",
    "NotFiniteError",
    "OutOfMemoryError",
    "OutputExistsError",
    "PairingWarning",
    "ParameterError",
    "ProjectionWarning",
    "ShapeError",
    "SpaceMismatchError",
    "StorageError",
    "TeacherWarning",
    "TooFewAnchorsError",
    "TrainingError",
    "UnpairedError",
    "VersionError",
    "ZeroRowError",
]


class CongruenceError(Exception):
    """Root of every error raised on purpose by this library."""


class InputError(CongruenceError, ValueError):
    """The numbers or ids handed in cannot be used."""


class ShapeError(InputError):
    """An array has the wrong number of axes, rows or columns."""


class DtypeError(InputError, TypeError):
    """An array holds something other than real numbers."""


class NotFiniteError(InputError):
    """An array holds NaN or infinity."""


class ZeroRowError(InputError):
    """A row consists of zeros, which is what a failed encoding leaves behind."""


class TooFewAnchorsError(InputError):
    """There are fewer pairs than the method needs."""


class IdError(InputError):
    """Ids are missing, repeated, or have no partner on the other side."""


class UnpairedError(InputError):
    """The anchors do not look paired: row i of one side is not row i of the other."""


class ParameterError(CongruenceError, ValueError):
    """An option has a value it cannot have."""


class SpaceMismatchError(CongruenceError, ValueError):
    """A map is applied to vectors of a space it was not fitted on."""


class DirectionError(SpaceMismatchError):
    """A map is applied to vectors that already live in its target space."""


class ModalityError(SpaceMismatchError):
    """A map is applied to a modality whose means it does not know."""


class FileError(CongruenceError, OSError):
    """A file cannot be read or written."""

    def __str__(self) -> str:  # OSError would print "[Errno None] None: …" for one argument and an errno
        return str(self.args[0]) if self.args else ""


class CorruptFileError(FileError):
    """A file is truncated, was edited, or is not what its name says."""


class VersionError(FileError):
    """A file was written by a newer version of congruence."""


class OutputExistsError(FileError):
    """The output path is taken and overwriting was not asked for."""


class StorageError(FileError):
    """The operating system refused a write, for example because the disk is full."""


class OutOfMemoryError(CongruenceError, MemoryError):
    """Something is larger than the memory that is free; refused before memory for it is asked for."""


class MissingExtraError(CongruenceError, ImportError):
    """An optional dependency is not installed."""


class TrainingError(CongruenceError, RuntimeError):
    """A training run cannot go on: its losses are not finite, or its checkpoint is of another run."""


class DatabaseError(CongruenceError, RuntimeError):
    """A database refuses what is asked of it, or holds something else than was expected."""


class DatabaseUnavailableError(DatabaseError):
    """A database does not answer, or is busy; it may help to try again."""


class MigrationError(CongruenceError, RuntimeError):
    """A step of a migration is not possible from where it stands."""


class CongruenceWarning(UserWarning):
    """Root of every warning given by this library."""


class PairingWarning(CongruenceWarning):
    """The anchors, or some of them, do not look paired."""


class ProjectionWarning(CongruenceWarning):
    """The target has fewer dimensions than the source: the map projects and loses information."""


class DegenerateWarning(CongruenceWarning):
    """The anchors leave directions of the space unprobed or constant."""


class DuplicateWarning(CongruenceWarning):
    """Rows have identical vectors, and are kept in one part of a split."""


class TeacherWarning(CongruenceWarning):
    """Trained heads retrieve worse than the linear teacher they learned from."""


class AlignmentWarning(CongruenceWarning):
    """Unpaired rows gave no map, or no better one, that held-out evidence supports."""


class ConvergenceWarning(CongruenceWarning):
    """Iterations ended before their result can be relied on."""


class NormWarning(CongruenceWarning):
    """Whether mapped rows should have unit norm is not known, or cannot be said in the file written."""


class ColumnsWarning(CongruenceWarning):
    """The output has no room for some columns of the table that is read."""
