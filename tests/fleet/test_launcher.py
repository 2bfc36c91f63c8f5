"""`phalanx run --workers`: real processes, tiny scripts; what they see, say and leave with."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = (
    "import json, os, sys\nconfig = json.loads(os.environ['TF_CONFIG'])\nindex = config['task']['index']\n"
)
SUPERVISE = """
import sys
from phalanx.host import env
from phalanx.launch.plan import WorkersPlan
from phalanx.launch.supervise import Settings, supervise
from phalanx.restart import Policy
policy = Policy({policy})
sys.exit(supervise(["job.py"], WorkersPlan("", [{{}}] * 2), env.snapshot(), Settings(grace=5, policy=policy)))
"""


def environ(**more):
    clean = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "NPROC")}
    return clean | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | more


@pytest.fixture
def mark():
    """A value in the environment of everything that a test starts; at the end nothing may carry it."""
    value = uuid.uuid4().hex
    yield value
    left = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if value.encode() in path.read_bytes():
                left.append(path.parent.name)
        except OSError:
            continue
    assert not left, f"processes left: {left}"


@pytest.fixture
def run(tmp_path, mark):
    """Run a job under the launcher, with options before the script."""

    def run(code, *options, arguments=(), python=("-m", "phalanx", "run"), timeout=60, **more):
        (tmp_path / "job.py").write_text(INDEX + code)
        script = () if python[0] == "-c" else (*options, "job.py", *arguments)
        return subprocess.run(
            [sys.executable, *python, *script],
            cwd=tmp_path,
            env=environ(MARK=mark, **more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )

    return run


TWO = ("--workers", "2")


# What workers see


def test_each_worker_has_its_place_its_replicas_and_a_loopback_address(run):
    code = "print(json.dumps([config, os.environ['JAX_NUM_CPU_DEVICES']]))"
    done = run(code, *TWO, "--replicas", "3")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.decode().splitlines(), key=lambda line: line.startswith("[worker 1] "))
    chief, other = json.loads(lines[0]), json.loads(lines[1].removeprefix("[worker 1] "))
    assert chief[0]["cluster"] == other[0]["cluster"]
    assert [each[0]["task"]["index"] for each in (chief, other)] == [0, 1]
    assert chief[1] == other[1] == "3"
    addresses = chief[0]["cluster"]["worker"]
    assert len(set(addresses)) == 2 and all(each.startswith("127.0.0.1:") for each in addresses)
    assert done.stderr.startswith(b"phalanx: 2 workers x 3 CPU replicas (")


def test_one_worker_is_a_cluster_of_one_and_prints_as_it_is(run):
    done = run("print(len(config['cluster']['worker']), index)", "--workers", "1")
    assert (done.returncode, done.stdout) == (0, b"1 0\n")


def test_without_workers_the_script_has_no_cluster(tmp_path, mark):
    (tmp_path / "job.py").write_text("import os; print(os.environ.get('TF_CONFIG'))")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "job.py"],
        cwd=tmp_path,
        env=environ(MARK=mark),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"None\n"


def test_hostile_arguments_and_values_reach_the_script_unchanged_and_no_shell(run, tmp_path):
    hostile = [
        "--workers",
        "7",
        "--",
        "$(touch no)",
        "`touch no`",
        "; touch no",
        "a'b\"c",
        "two\nlines",
        "",
        "*",
        "é",
    ]
    value = "'; $(touch no)\n`touch no`\" é" + "x" * 100_000
    code = "print(json.dumps([sys.argv[1:], os.environ['HOSTILE']]))"
    done = run(code, *TWO, arguments=hostile, HOSTILE=value, TF_CONFIG="$(touch no)")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.decode().splitlines():
        assert json.loads(line.removeprefix("[worker 1] ")) == [hostile, value]
    assert len(done.stdout.splitlines()) == 2
    assert os.listdir(tmp_path) == ["job.py"]


def test_options_of_python_and_modules_reach_every_worker(run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(sys.flags.dev_mode, sys.argv[1:])")
    done = run("", python=("-X", "dev", "-m", "phalanx", "run", *TWO, "-m", "package.train", "-x"))
    assert sorted(done.stdout.decode().split("\n")) == [
        "",
        "True ['-x', 'job.py']",
        "[worker 1] True ['-x', 'job.py']",
    ]


def test_workers_have_no_input(run):
    assert run("print(repr(sys.stdin.read()))", *TWO).stdout.splitlines().count(b"''") == 1


def test_the_launcher_loads_neither_jax_nor_keras(run):
    done = run("", *TWO, python=("-X", "importtime", "-m", "phalanx", "run"))
    loaded = {line.rsplit("|")[-1].strip() for line in done.stderr.decode().splitlines()}
    assert "phalanx.launch.supervise" in loaded
    assert not {name.split(".")[0] for name in loaded} & {"jax", "jaxlib", "keras", "numpy"}


# What they say

BAR = r"""
for at in (1, 2, 3):
    back = "\b" * 30 if at > 1 else ""
    sys.stdout.write(back + "\r" + f"\x1b[1m{at}/3\x1b[0m \x1b[32m" + "━" * at + "\x1b[0m\x1b[37m" + "━" * (3 - at)
                     + f"\x1b[0m \x1b[1m{3 - at}s\x1b[0m 100ms/step - accuracy: 0.5{at} - loss: 1.2{at}")
    sys.stdout.flush()
print()
print("after", index)
print("warning of", index, file=sys.stderr)
"""


def test_one_bar_and_the_lines_of_all(run):
    done = run(BAR, *TWO)
    text = done.stdout.decode()
    assert text.count("3/3") == text.count("1/3") == 1, "one bar, all its drawings"
    assert sorted(line for line in text.splitlines() if "after" in line) == ["[worker 1] after 1", "after 0"]
    assert "[worker 1]" not in text.split("after 0")[0].split("1/3")[-1].split("3/3")[0]
    warnings = [line for line in done.stderr.decode().splitlines() if "warning" in line]
    assert sorted(warnings) == ["[worker 1] warning of 1", "warning of 0"]


def test_the_chiefs_bytes_pass_at_once_and_as_they_are(tmp_path, mark):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "job.py").write_text(
        f"import os\nos.write(1, b'\\xff half a line')\nopen({str(gate)!r}).read()\nos.write(1, b' whole')\n"
    )
    command = [sys.executable, "-m", "phalanx", "run", "--workers", "1", "job.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ(MARK=mark), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as launcher:
        try:
            assert os.read(launcher.stdout.fileno(), 100) == b"\xff half a line"
            gate.write_text("go")
            assert launcher.stdout.read() == b" whole"
            assert launcher.wait(timeout=20) == 0
        finally:
            launcher.kill()


def test_all_of_a_large_output_arrives(run):
    done = run("for i in range(20000): print(index, 'x' * 100, i)", *TWO)
    lines = done.stdout.decode().splitlines()
    chief = [line for line in lines if not line.startswith("[worker 1]")]
    other = [line.removeprefix("[worker 1] ") for line in lines if line.startswith("[worker 1]")]
    for index, got in enumerate((chief, other)):
        assert [line for line in got if line] == [f"{index} {'x' * 100} {i}" for i in range(20000)]


def test_output_without_an_end_of_line_is_not_lost(run):
    done = run("sys.stdout.write(f'end of {index}')", *TWO)
    assert {b"end of 0", b"[worker 1] end of 1"} == {line for line in done.stdout.splitlines() if line}


# What they leave with


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_exit_code_is_the_failing_workers_own(run, worker, code):
    done = run(f"sys.exit({code} if index == {worker} else 0)", *TWO)
    assert done.returncode == code
    assert f"phalanx: worker {worker} left with code {code}; it wrote nothing" in done.stderr.decode()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_is_128_more_and_named(run, signum):
    done = run(f"import signal\nif index: os.kill(os.getpid(), {int(signum)})\nelse: signal.pause()", *TWO)
    assert done.returncode == 128 + signum
    assert f"worker 1 was ended by {signum.name} (code {128 + signum})" in done.stderr.decode()


def test_the_first_failure_wins_and_its_last_lines_come_last(run, tmp_path):
    code = """
import signal
def leave(*_):
    print("noise of the one that was ended", file=sys.stderr)
    os._exit(7)
signal.signal(signal.SIGTERM, leave)
if index == 2:
    gate = os.open("gate", os.O_RDWR)
    for each in range(2):
        os.read(gate, 1)  # until the others are ready
    raise RuntimeError("the cause")
open("gate", "wb").write(b"x")
signal.pause()
"""
    os.mkfifo(tmp_path / "gate")
    done = run(code, "--workers", "3")
    text = done.stderr.decode()
    assert done.returncode == 1
    assert text.splitlines()[-1] == "RuntimeError: the cause"
    assert "worker 2 left with code 1; the last lines of its standard error:\nTraceback" in text
    assert "noise of the one" in text


def test_all_done_waits_for_the_slower_worker(run, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code = f"""
if index == 0:
    open({str(gate)!r}).read()  # ends when worker 1 has opened and closed it
    print("slow one is done")
else:
    open({str(gate)!r}, "w").close()
"""
    done = run(code, *TWO)
    assert (done.returncode, done.stdout) == (0, b"slow one is done\n")


# Starting again


@pytest.mark.parametrize(
    ("codes", "policy", "code", "said", "starts"),
    [
        ([3, 0], "max_restarts=1, backoff=0.01, short=0", 0, "left with code 3: restart 1 of 1", 2),
        ([3, 4, 5], "max_restarts=2, backoff=0.01, short=0", 5, "left with code 5; 2 restarts used up", 3),
        ([75, 75, 3, 0], "max_restarts=1, backoff=0.01, short=0", 0, "preempted: restart, not counted", 4),
        ([3] * 9, "max_restarts=8, backoff=0.01", 3, "a crash loop: 3 runs in a row ended early", 3),
        ([3], "", 3, "worker 1 left with code 3;", 1),
        ([75], "", 75, "worker 1 left with code 75;", 1),
    ],
    ids=["mended", "used up", "preempted", "crash loop", "never", "never, preempted"],
)
def test_all_workers_start_again_as_the_policy_says(run, tmp_path, codes, policy, code, said, starts):
    job = """
import pathlib, signal
runs = pathlib.Path(f"runs{index}")
runs.write_text((runs.read_text() if runs.exists() else "") + "x")
code = CODES[len(runs.read_text()) - 1]
open("gate", "r" if index else "w").close()  # both have started
if index == 0 and code:
    signal.pause()
sys.exit(code)
""".replace("CODES", str(codes))
    os.mkfifo(tmp_path / "gate")
    done = run(job, python=("-c", SUPERVISE.format(policy=policy)))
    assert done.returncode == code and said in done.stderr.decode(), done.stderr
    assert [len((tmp_path / f"runs{index}").read_text()) for index in (0, 1)] == [starts, starts]


def test_a_port_that_another_program_took_first_is_exchanged(run, tmp_path):
    code = """
import pathlib
mine = config["cluster"]["worker"][index]
if index == 0 and not pathlib.Path("first").exists():
    pathlib.Path("first").write_text(mine)
    sys.exit(f"bind {mine}: Address already in use")
pathlib.Path(f"second{index}").write_text(mine)
"""
    done = run(code, *TWO)
    first, second = (tmp_path / "first").read_text(), (tmp_path / "second0").read_text()
    assert done.returncode == 0, done.stderr
    assert f"another program took port {first.split(':')[1]}: new ports, not counted" in done.stderr.decode()
    assert first != second


# Ports

MEET = """
import socket
addresses = [(host, int(port)) for host, port in (each.split(":") for each in config["cluster"]["worker"])]
with socket.create_server(addresses[index]) as server:
    server.settimeout(30)
    if index == 0:
        server.accept()[0].sendall(b"welcome")
    else:
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(addresses[0]) == 0:
                    print(client.recv(7).decode())
                    break
            server.settimeout(0.02)
            try: server.accept()
            except TimeoutError: pass
"""


def start(folder, mark, *options, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", *options, "job.py"],
        cwd=folder,
        env=environ(MARK=mark, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_two_launchers_at_the_same_moment_both_work(tmp_path, mark):
    (tmp_path / "job.py").write_text(INDEX + MEET)
    launchers = [start(tmp_path, mark, *TWO) for _ in range(2)]
    try:
        for launcher in launchers:
            out, err = launcher.communicate(timeout=60)
            assert (launcher.returncode, out) == (0, b"[worker 1] welcome\n"), err
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.communicate()


def neighbours(count):
    """The first of free neighbouring ports; another program may take one before the test does."""
    for first in range(21000, 32000, 10):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", first))
                two.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def test_a_wanted_port_is_taken_as_told(run):
    first = neighbours(2)
    done = run("print(config['cluster']['worker'])", *TWO, "--port", str(first))
    assert f"['127.0.0.1:{first}', '127.0.0.1:{first + 1}']" in done.stdout.decode(), done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_wanted_port_that_is_taken_is_named_at_once(run, tmp_path, host):
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        port = server.getsockname()[1]
        done = run("open('started', 'w')", *TWO, "--port", str(port - 1), timeout=5)
    text = done.stderr.decode()
    assert done.returncode == 2
    assert f"received: --port {port - 1}: port {port} is taken (Address already in use)" in text or (
        f"received: --port {port - 1}: port {port - 1} " in text  # a second stranger
    )
    assert text.splitlines()[-1].startswith("  next:     phalanx run --workers 2 train.py")
    assert not (tmp_path / "started").exists()


def test_a_wanted_port_of_another_launcher_is_named_before_its_workers_listen(run, tmp_path, mark):
    first = neighbours(2)
    (tmp_path / "wait").mkdir()
    (tmp_path / "wait" / "job.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    with start(tmp_path / "wait", mark, *TWO, "--port", str(first)) as launcher:
        try:
            assert b"ready" in launcher.stdout.readline()
            done = run("", *TWO, "--port", str(first + 1), timeout=5)
            assert done.returncode == 2
            assert f"port {first + 1} belongs to another phalanx run" in done.stderr.decode()
        finally:
            launcher.terminate()
            launcher.communicate(timeout=20)


def test_twenty_starts_and_stops_leave_no_process_and_no_port(tmp_path, mark):
    first = neighbours(2)
    (tmp_path / "job.py").write_text(
        INDEX
        + "import signal, socket\n"
        + "server = socket.create_server(('127.0.0.1', int(config['cluster']['worker'][index].split(':')[1])))\n"
        + "print('ready', flush=True)\nsignal.pause()\n"
    )
    for cycle in range(20):
        with start(tmp_path, mark, *TWO, "--port", str(first)) as launcher:
            try:
                ready = {launcher.stdout.readline(), launcher.stdout.readline()}
                assert ready == {b"ready\n", b"[worker 1] ready\n"}, launcher.stderr.read()
                launcher.send_signal(signal.SIGINT if cycle % 2 else signal.SIGTERM)
                assert launcher.wait(timeout=20) == (130 if cycle % 2 else 143)
            finally:
                launcher.kill()
        for port in (first, first + 1):
            with socket.socket() as server:
                server.bind(("127.0.0.1", port))
