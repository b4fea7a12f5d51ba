import errno
import os
import subprocess
import sys
import threading

import pytest

from specray.target.threads import clear_the_models_core


@pytest.fixture
def cores() -> set[int]:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    return allowed


def test_all_threads_but_free_ones_leave_the_core_of_the_main_one(cores: set[int]) -> None:
    """In a process of its own: the test's threads stay as they are."""
    code = (
        "import os, threading, time\n"
        "from specray.target.threads import clear_the_models_core\n"
        f"os.sched_setaffinity(0, {{{min(cores)}}})\n"
        "other = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "free = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "other.start()\n"
        "free.start()\n"
        "clear_the_models_core({free.native_id})\n"
        "for thread in (0, other.native_id, free.native_id):\n"
        "    print(sorted(os.sched_getaffinity(thread)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = sorted(set(range(os.cpu_count() or 1)) - {min(cores)})
    everywhere = sorted({min(cores), *others})
    assert done.stdout.splitlines() == [str([min(cores)]), str(others), str(everywhere)]


def test_cores_that_a_container_forbids_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.cpu_count` counts the machine's, of which a cpuset may allow some only."""

    def refuse(_thread: int, _cores: set[int]) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "cpu_count", lambda: 1024)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    clear_the_models_core()
    ended.set()
    other.join()
