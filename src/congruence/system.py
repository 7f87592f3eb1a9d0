"""Versions, extras, threads, memory and devices of this installation, as needed in a bug report."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from congruence._utils.memory import free_memory, say_size
from congruence._version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

#: Variables that change the number of threads, the visible devices, or whether models may be downloaded. None of them
#: holds a key or token.
VARIABLES = (
    *(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")),
    *("OPENBLAS_THREAD_TIMEOUT", "VECLIB_MAXIMUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_ENABLE_MPS_FALLBACK"),
    *("HF_HUB_OFFLINE", "NO_COLOR", "PYTHONUTF8"),
)

_DEVELOPMENT = {"test", "docs"}  # extras for working on the library itself


@dataclass(frozen=True)
class SystemInfo:
    """Versions, extras, threads, memory and devices of this installation. Contains no user name, host name or path."""

    version: str  # of congruence
    python: str  # implementation and version
    platform: str  # operating system, its release and the machine's architecture
    packages: dict[str, str | None]  # version of each required package; None if it is not installed
    outdated: dict[str, str]  # the requirement of each installed package that does not satisfy it
    extras: dict[str, list[str]]  # missing requirements of each extra; empty if it is complete
    threads: dict[str, int | str]  # ``cpus`` that this process may use, and threads of each native library
    memory: int | None  # bytes that this process can still allocate; None if unknown
    devices: list[str]  # that torch can compute on; empty without torch
    variables: dict[str, str]  # those of ``VARIABLES`` that are set

    def to_dict(self) -> dict[str, object]:
        """Return plain data, as ``congruence lab info --json`` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        complete = [name for name, missing in self.extras.items() if not missing]
        lines = {
            "congruence": self.version,
            "python": self.python,
            "platform": self.platform,
            **{name: version or "MISSING" for name, version in self.packages.items()},
            "outdated": ", ".join(self.outdated.values()) or "nothing",
            "extras": ", ".join(complete) or "none",
            "without": ", ".join(name for name in self.extras if name not in complete) or "nothing",
            "threads": ", ".join(f"{name} {count}" for name, count in self.threads.items()),
            "free memory": "unknown" if self.memory is None else say_size(self.memory),
            "devices": ", ".join(self.devices) or ("no torch" if _version("torch") is None else "not listed"),
            **self.variables,
        }
        width = max(map(len, lines))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())


def system_info(*, devices: bool = True) -> SystemInfo:
    """Return versions, extras, threads, memory and ``devices``, for which torch, if installed, is imported.

    >>> import congruence
    >>> facts = congruence.system_info(devices=False)
    >>> facts.version == congruence.__version__
    True
    """
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in metadata.requires("congruence") or []]
    except metadata.PackageNotFoundError:  # the source tree is used without installing it
        requirements = []
    markers = " ".join(str(needed.marker) for needed in requirements)
    extras = {*re.findall(r"extra == \"([^\"]+)\"", markers)}
    core = [needed for needed in requirements if _applies(needed, "")]
    unmet = [needed for needed in requirements if not _is_met(needed)]
    return SystemInfo(
        version=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages={needed.name: _version(needed.name) for needed in core},
        outdated={
            needed.name: f"{needed.name} {_version(needed.name)} (expected {needed.specifier})"
            for needed in unmet
            if _version(needed.name) is not None
        },
        extras={
            extra: sorted(f"{one.name}{one.specifier}" for one in unmet if one not in core and _applies(one, extra))
            for extra in sorted(extras - _DEVELOPMENT)
        },
        threads=_threads(),
        memory=free_memory(),
        devices=_devices() if devices else [],
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _is_met(requirement: Requirement) -> bool:
    installed = _version(requirement.name)
    return installed is not None and requirement.specifier.contains(installed, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _threads() -> dict[str, int | str]:
    """Count the processors that this process may use, and the threads of the native libraries of NumPy and SciPy."""
    import numpy  # noqa: F401  # loads its BLAS
    import scipy.linalg  # noqa: F401  # SciPy may load a BLAS of its own
    from threadpoolctl import threadpool_info

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads: dict[str, int | str] = {"cpus": usable}
    for pool in threadpool_info():
        label = " ".join(str(pool[key]) for key in ("internal_api", "version", "architecture") if pool.get(key))
        threads[label] = int(pool["num_threads"])
    return threads


def _devices() -> list[str]:
    """Name the devices that torch can compute on, or the error of one that fails, which the report may be about."""
    if _version("torch") is None:
        return []
    try:
        import torch

        devices = ["cpu"]
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            devices.append(f"cuda:{number} {facts.name}, {say_size(facts.total_memory)}, CUDA {torch.version.cuda}")
        return devices + ["mps"] * torch.backends.mps.is_available()
    # A broken installation of torch fails in many ways, and the rest of the report is still useful.
    except Exception as error:
        print(f"note: torch could not list its devices: {error!r}", file=sys.stderr)
        return [f"torch fails: {type(error).__name__}"]
