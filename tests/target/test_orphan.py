import signal
import subprocess
import sys
from pathlib import Path

import psutil

PARENT = """
import multiprocessing, os, sys, time

def child():
    from specray.target.orphan import end_with_parent
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context(sys.argv[1]).Process(target=child).start()
    time.sleep(60)
"""


def test_a_child_whose_parent_is_killed_ends(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), "spawn"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        try:
            child.wait(timeout=20)
        except psutil.TimeoutExpired:
            child.kill()
            raise


def test_who_is_nobodys_child_goes_on() -> None:
    code = "from specray.target.orphan import end_with_parent; end_with_parent(); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "on\n"
