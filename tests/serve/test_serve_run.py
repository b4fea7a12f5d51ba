"""Ray's own `serve run` on our files."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.serve.service import ROOT, Service, local_config

pytestmark = [pytest.mark.e2e, pytest.mark.service, pytest.mark.timeout(300)]


@pytest.fixture
def ray_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="specray-")  # short: Ray's sockets lie in it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, ray_folder: str) -> None:
    """It goes on running, as with any config file: `specray serve` is the one that ends."""
    config = local_config()
    config["applications"][0]["args"]["speculation"]["max_depth"] = -1
    file = tmp_path / "faulty.yaml"
    file.write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "serve"), "run", "--address", "local", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": ray_folder},
    )
    service = Service(process, file)
    try:
        service.wait_for_line(r"speculation\.max_depth: .*greater than or equal to 0", 180.0)
    finally:
        try:
            left = service.stop(signal.SIGINT, 10.0)
        except subprocess.TimeoutExpired:  # how `serve run` ends, and when, is Ray's
            left = service.processes()
        for survivor in left:
            survivor.kill()
        process.wait(timeout=10.0)
    assert not any("ServeReplica" in line for line in service.lines)  # no engine was started
