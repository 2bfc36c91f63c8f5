"""Twenty runs of two workers, one after the other: each leaves the machine as it found it."""

import os
import socket
from pathlib import Path

import pytest

from tests.fleet.launching import START, finish, launches, marked, neighbours

JOIN = """
import warnings
from phalanx.cluster import resolve
from phalanx.strategies.joining import join  # all of a run that starts and stops, without Keras's two seconds
exchange = join(resolve(), 60.0, 20.0)
print("met", exchange.gather("numbers", str(index)), flush=True)
"""


@pytest.fixture
def launch(tmp_path):
    yield from launches(tmp_path)


def names_taken():
    """Abstract sockets by which a launcher holds a port."""
    return {
        line.split()[-1]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if "@phalanx-port" in line
    }


def test_twenty_runs_leave_no_process_no_port_and_no_file(launch, tmp_path):
    first = neighbours()
    temporary = tmp_path / "tmp"
    (tmp_path / "job.py").write_text(START)
    temporary.mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for _ in range(20):
        mark = os.urandom(16).hex()
        variables = {"TMPDIR": str(temporary), "CYCLE": mark, "PYTHONDONTWRITEBYTECODE": "1"}
        command = ("-m", "phalanx", "run", "--port", str(first))
        run = launch(JOIN, "--workers", "2", python=command, variables=variables)
        code, out, err = finish(run)
        assert code == 0, err
        assert out.count("met ['0', '1']") == 2
        assert marked(mark) == [], "processes"
        for port in (first, first + 1):  # nobody listens, and the next run takes the same at once
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", port))
        assert not names_taken() & {f"@phalanx-port-{first}", f"@phalanx-port-{first + 1}"}
        assert list(temporary.iterdir()) == [] and sorted(p.name for p in tmp_path.iterdir()) == before
