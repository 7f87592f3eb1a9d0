"""Passwords: never on the command line, whose words everybody on a machine can list, and in no message."""

import os

import pytest

import congruence.databases
from congruence.cli._input import open_asking
from congruence.databases import Address
from congruence.errors import DatabaseError


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["migrate", "postgresql://anna:s3cret-word@127.0.0.1:1/shop", "status"], "PGPASSWORD, write it to ~/.pgpass"),
        (["migrate", "plan", "postgres://anna:s3cret-word@127.0.0.1:1/shop"], "PGPASSWORD"),
        (["migrate", "postgresql://anna@127.0.0.1:1/shop?sslpassword=s3cret-word", "--json"], "PGPASSWORD"),
        (["migrate", "http://me:s3cret-word@127.0.0.1:1"], "QDRANT_API_KEY"),
        (["transform", "map", "s3://key:s3cret-word@bucket/a.npy", "-o", "b.npy"], "environment variable"),
        (["search", "map", "a.npy", "--items=https://me:s3cret-word@host/"], "environment variable"),
        (["nonsense", "https://host/?api_key=s3cret-word"], "environment variable"),
        (["migrate", "postgresql:/anna:s3cret-word@127.0.0.1/shop", "status"], "one of these forms"),
        (["migrate", "anna:s3cret-word@127.0.0.1/shop", "status"], "one of these forms"),
        (["migrate", "host=127.0.0.1 password = s3cret-word dbname=shop", "status"], "one of these forms"),
    ],
)
def test_a_password_on_the_command_line_is_refused_with_the_ways_that_work(here, tmp_path, words, way):
    done = here(*words)
    assert (done.code, done.out) == (2, "")
    assert way in done.err
    assert "s3cret-word" not in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address",
    ["postgresql://anna@host/shop?passfile=/home/anna/.pgpass", "photos.parquet:vec", "s3://bucket/a@b.lance"],
)
def test_addresses_without_a_password_have_no_secret(address):
    assert Address.parse(address).secrets == ()
    assert Address.parse(address).shown == address


class Terminal:
    def isatty(self):
        return True


def test_a_server_that_wants_a_password_is_asked_for(monkeypatch):
    """The server says so, by libpq; without a terminal the error stands."""
    given = []

    def opened(where, **options):
        given.append((where, options, os.environ.get("PGPASSWORD")))
        if given[-1][2] is None:
            raise DatabaseError("fe_sendauth: no password supplied")
        return "the database"

    monkeypatch.setattr(congruence.databases, "open_database", opened)
    monkeypatch.setenv("PGPASSWORD", "")
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setattr("getpass.getpass", lambda prompt: f"typed after {prompt}")
    with pytest.raises(DatabaseError, match="no password supplied"):
        open_asking("postgresql://anna@host/shop", table="items")
    monkeypatch.setattr("sys.stdin", Terminal())
    assert open_asking("postgresql://anna@host/shop", table="items") == "the database"
    assert given[-1][2] == "typed after Password for postgresql://anna@host/shop: "
    assert given[0][:2] == given[-1][:2]
