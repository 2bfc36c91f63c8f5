"""Jobs under the launcher: tiny scripts in real processes, and the proof that nothing of them is left."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TWO = ("--workers", "2")
START = """import json, os, signal, subprocess, sys
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
"""
COMMAND = ("-S", "-m", "phalanx", "run")  # the launcher needs no package but ours, and starts faster so


def environ(**more):
    """An environment as of a user without accelerators, who finds this package."""
    clean = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "NPROC")}
    return clean | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | more


def launches(folder):
    """For a fixture: gives a function that starts a job, and at the end looks for what is left of all."""
    mark = uuid.uuid4().hex
    started = []
    # Under nohup a launcher would leave it ignored, as it should.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def launch(code, *options, arguments=(), python=COMMAND, variables=None, **more):
        (folder / "job.py").write_text(START + code)
        script = () if "-c" in python else (*options, "job.py", *arguments)
        streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | more
        started.append(
            subprocess.Popen(
                [sys.executable, *python, *script],
                cwd=folder,
                env=environ(MARK=mark, **(variables or {})),
                **streams,
            )
        )
        return started[-1]

    yield launch
    for launcher in started:
        launcher.kill()
        launcher.wait()
        for stream in (launcher.stdout, launcher.stderr):
            if stream is not None:
                stream.close()
    left = [pid for pid in marked(mark) if not wait_gone(pid, 5)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left: {left}"


def finish(launcher, seconds=60):
    """Wait for a launcher's end.

    Returns:
        Its exit code, what it wrote to standard output, and to standard error.
    """
    out, err = launcher.communicate(timeout=seconds)
    return launcher.returncode, out.decode(), err.decode()


def wait_gone(pid, seconds):
    """Wait for the end of any process, without looking again and again."""
    try:
        number = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([number], [], [], seconds)[0])
    finally:
        os.close(number)


def marked(value):
    """Processes that have a value in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if value.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def supervise(policy="", port=None):
    """A command that supervises two workers with any policy, for a launch's `python`."""
    return (
        "-S",
        "-c",
        f"""
import sys
from phalanx.host import env
from phalanx.launch.plan import WorkersPlan
from phalanx.launch.supervise import Settings, supervise
from phalanx.restart import Policy
settings = Settings(port={port}, policy=Policy({policy}))
sys.exit(supervise(["job.py"], WorkersPlan("", [{{}}] * 2), env.snapshot(), settings))
""",
    )


def neighbours():
    """The first of two free ports beside each other, where no launcher and no kernel chooses any."""
    for first in range(61_000 + os.getpid() % 1000 * 4, 65_500, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", first))
                two.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
