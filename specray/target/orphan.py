"""What an engine core does when its replica is killed: it ends as well.

vLLM's waits for requests that nobody can send any more, and holds its memory, a GPU's too, which
the replica's successor then lacks. Ray ends the children of a worker that dies, but not where the
whole node's Ray is killed.
"""

import os
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """Ends this process at once when the one that started it has gone; nothing where it is none's.

    Only `multiprocessing`'s children have a parent in this sense, such as vLLM's engine cores.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait, args=(parent.sentinel,), daemon=True).start()


def _wait(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
