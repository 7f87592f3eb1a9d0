"""All commands of the program."""

from congruence.cli import app


def walk(group=app, names=()):
    """Yield the names and the command of every command below a group; groups only lead there."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from walk(command, (*names, name))
        else:
            yield (*names, name), command


def find(words):
    """Return the command that these words name, or the last group on the way to it."""
    command = app
    for word in words:
        command = (command.get_command(None, word) if hasattr(command, "list_commands") else None) or command
    return command
