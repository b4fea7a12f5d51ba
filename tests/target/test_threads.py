import errno
import os
import subprocess
import sys

import pytest

from specray.target.threads import clear_the_models_core


@pytest.fixture
def cores() -> set[int]:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    return allowed


def affinities(model_core: int, replica: str = "") -> list[str]:
    """Of the main thread, another, and a free one, in a process whose model has a core.

    Args:
        model_core: to which its main thread is bound.
        replica: code that the process which starts it runs before.
    """
    engine = (
        "import os, threading, time\n"
        "from specray.target.threads import clear_the_models_core\n"
        f"os.sched_setaffinity(0, {{{model_core}}})\n"
        "other = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "free = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "other.start()\n"
        "free.start()\n"
        "clear_the_models_core({free.native_id})\n"
        "for thread in (0, other.native_id, free.native_id):\n"
        "    print(sorted(os.sched_getaffinity(thread)))\n"
    )
    start = "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    code = f"import os, subprocess, sys\n{replica}\n{start}"
    command = [sys.executable, "-c", code, engine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_all_threads_but_free_ones_leave_the_core_of_the_main_one(cores: set[int]) -> None:
    others = sorted(cores - {min(cores)})
    assert affinities(min(cores)) == [str([min(cores)]), str(others), str(sorted(cores))]


def test_no_thread_gets_a_core_that_the_replica_was_not_given(cores: set[int]) -> None:
    core = min(cores)
    assert affinities(core, f"os.sched_setaffinity(0, {{{core}}})") == [str([core])] * 3


def test_a_thread_that_has_ended_meanwhile_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: int, _cores: set[int]) -> None:
        raise OSError(errno.ESRCH, "No such process")

    monkeypatch.setattr(os, "getpid", lambda: -1)  # so that the test's own thread is another
    monkeypatch.setattr(os, "sched_getaffinity", lambda i: {0, 1} if i == os.getppid() else {0})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    clear_the_models_core()
