"""Processes that kill themselves at a step."""

import multiprocessing

#: Nothing of a database is open in the process that forks.
CONTEXT = multiprocessing.get_context("fork")


def fork(target, *arguments):
    """Call a function in a process, with a shared number as its last argument; return the exit code and the number."""
    seen = CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=target, args=(*arguments, seen))
    process.start()
    process.join(120)
    return process.exitcode, seen.value
