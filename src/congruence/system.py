"""Versions, extras, threads, memory and devices of this installation, as needed in a bug report."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from congruence._utils.memory import free_memory, say_size
from congruence._version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement


#: Variables that change the number of threads, the visible devices, or whether models may be downloaded. None of them
#: holds a key or token.
VARIABLES = (
    *(
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "OPENBLAS_THREAD_TIMEOUT",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "NUMEXPR_NUM_THREADS",
    *("CUDA_VISIBLE_DEVICES", "PYTORCH_ENABLE_MPS_FALLBACK", "HF_HUB_OFFLINE", "NO_COLOR", "PYTHONUTF8"),
)

#: Extras for working on the library itself.
_DEVELOPMENT = {"test", "docs"}


@dataclass(frozen=True)
class SystemInfo:
    """Versions, extras, threads, memory and devices of this installation. Contains no user name, host name or path.

    - ``version``: Version of congruence.
    - ``python``: Implementation and version.
    - ``platform``: Operating system, its release and the machine's architecture.
    - ``packages``: Version of each package that congruence requires; None if it is not installed.
    - ``outdated``: The requirement of each installed package whose version does not satisfy it, including packages
      required by extras.
    - ``extras``: The missing requirements of each extra; an empty list if it is complete.
    - ``threads``: ``cpus`` that this process may use, and the number of threads of each native library loaded by NumPy
      and SciPy.
    - ``memory``: Bytes of memory that this process can still allocate; None if the system does not report it.
    - ``devices``: Devices that torch can compute on: ``cpu``, and each CUDA or MPS device by name. Empty without torch.
    - ``variables``: Environment variables listed in ``VARIABLES`` that are set.
    """

    version: str
    python: str
    platform: str
    packages: dict[str, str | None]
    outdated: dict[str, str]
    extras: dict[str, list[str]]
    threads: dict[str, int | str]
    memory: int | None
    devices: list[str]
    variables: dict[str, str]

    def to_dict(self) -> dict[str, object]:
        """Return plain data, as ``congruence lab info --json`` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the facts as lines to paste into a bug report."""
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
    """Return versions, extras, threads, memory and devices of this installation.

    Parameters
    ----------
    devices : bool, default=True
        List torch's devices, if torch is installed; importing it takes seconds.

    Examples
    --------
    >>> import congruence
    >>> facts = congruence.system_info(devices=False)
    >>> facts.version == congruence.__version__
    True
    """
    requirements = _requirements()
    outdated = {}
    for requirement in requirements:
        installed = _version(requirement.name)
        if installed is not None and not requirement.specifier.contains(installed, prereleases=True):
            outdated[requirement.name] = f"{requirement.name} {installed} (expected {requirement.specifier})"
    return SystemInfo(
        version=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages={needed.name: _version(needed.name) for needed in requirements if _applies(needed, "")},
        outdated=outdated,
        extras=_extras(requirements),
        threads=_threads(),
        memory=free_memory(),
        devices=_devices() if devices else [],
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _requirements() -> list[Requirement]:
    """Return the requirements of the installed distribution, including extras; an empty list if the source tree is used
    without installing it.
    """
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        return [Requirement(line) for line in requires("congruence") or []]
    except PackageNotFoundError:
        return []


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _extras(requirements: list[Requirement]) -> dict[str, list[str]]:
    """Return the missing requirements of each extra on this platform."""
    names = {name for needed in requirements for name in re.findall(r"extra == \"([^\"]+)\"", str(needed.marker or ""))}
    return {
        extra: sorted(
            f"{needed.name}{needed.specifier}"
            for needed in requirements
            if not _applies(needed, "") and _applies(needed, extra) and _is_missing(needed)
        )
        for extra in sorted(names - _DEVELOPMENT)
    }


def _is_missing(requirement: Requirement) -> bool:
    installed = _version(requirement.name)
    return installed is None or not requirement.specifier.contains(installed, prereleases=True)


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
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
    """Name the devices that torch can compute on; a device that fails is listed with its error, which the bug report
    may be about.
    """
    if _version("torch") is None:
        return []
    try:
        import torch

        devices = ["cpu"]
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            devices.append(f"cuda:{number} {facts.name}, {say_size(facts.total_memory)}, CUDA {torch.version.cuda}")
        if torch.backends.mps.is_available():
            devices.append("mps")
        return devices
    # A broken installation of torch fails in many ways, and the rest of the report is still useful.
    except Exception as error:
        print(f"note: torch could not list its devices: {error!r}", file=sys.stderr)
        return [f"torch fails: {type(error).__name__}"]
