import os
from pathlib import Path

from specray.serve.root_cause import root_cause

EARLIER = """\
(EngineCore pid=11) ERROR 11-27 01:15:46 [core.py:1374] ValueError: too little, at first
"""
LATEST = """\
INFO 11-27 01:16:00 starting
(EngineCore pid=28) ERROR 11-27 01:16:09 [core.py:1374] EngineCore failed to start.
(EngineCore pid=28) ERROR 11-27 01:16:09 [core.py:1374] Traceback (most recent call last):
(EngineCore pid=28) ERROR 11-27 01:16:09 [core.py:1374]     raise ValueError(
(EngineCore pid=28) ERROR 11-27 01:16:09 [core.py:1374] torch.OutOfMemoryError: CUDA out of memory.
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
"""


def written(folder: Path, name: str, text: str, age_s: int) -> Path:
    file = folder / name
    file.write_text(text)
    os.utime(file, (1000 - age_s, 1000 - age_s))
    return file


def test_the_latest_fault_of_an_engine_is_named_with_its_file(tmp_path: Path) -> None:
    written(tmp_path, "worker-a-11.out", EARLIER, 20)
    file = written(tmp_path, "worker-b-28.out", LATEST, 10)
    written(tmp_path, "worker-c-30.out", "a draft says nothing\n", 0)

    cause = root_cause(tmp_path)
    assert cause == f"torch.OutOfMemoryError: CUDA out of memory. (the engine's output: {file})"


def test_without_a_fault_there_is_none(tmp_path: Path) -> None:
    written(tmp_path, "worker-c-30.out", "RuntimeError: of a replica, told by Serve\n", 0)

    assert root_cause(tmp_path) == ""
