"""`phalanx run --workers`, again and again: restarts, ports, launchers beside each other."""

import os
import signal
import socket

import pytest

from tests.fleet.launching import TWO, finish, launches, neighbours, supervise


@pytest.fixture
def launch(tmp_path):
    yield from launches(tmp_path)


@pytest.fixture
def run(launch):
    return lambda *arguments, seconds=60, **more: finish(launch(*arguments, **more), seconds)


# Restarts

FAST = "backoff=0.01, short=0, max_restarts="


@pytest.mark.parametrize(
    ("codes", "policy", "wanted", "said", "starts"),
    [
        ([3, 0], FAST + "1", 0, "left with code 3: restart 1 of 1", 2),
        ([3, 4, 5], FAST + "2", 5, "left with code 5; 2 restarts used up", 3),
        ([75, 75, 3, 0], FAST + "1", 0, "preempted: restart, not counted", 4),
        ([3] * 9, "backoff=0.01, max_restarts=8", 3, "a crash loop: 3 runs in a row ended early", 3),
        ([3], "", 3, "worker 1 left with code 3;", 1),
        ([75], "", 75, "worker 1 left with code 75;", 1),
    ],
    ids=["mended", "used up", "preempted", "crash loop", "never", "never, preempted"],
)
def test_all_workers_start_again_as_the_policy_says(run, tmp_path, codes, policy, wanted, said, starts):
    job = f"""
with open(f"runs{{index}}", "a+") as runs:
    runs.write("x")
    code = {codes}[runs.tell() - 1]
open("gate", "r" if index else "w").close()  # both have started
if index == 0 and code:
    signal.pause()
sys.exit(code)
"""
    os.mkfifo(tmp_path / "gate")
    code, _, err = run(job, python=supervise(policy))
    assert code == wanted and said in err, err
    assert [len((tmp_path / f"runs{index}").read_text()) for index in (0, 1)] == [starts, starts]


def test_control_c_in_the_middle_of_a_back_off_ends_it(launch):
    launcher = launch("sys.exit(3)", python=supervise("max_restarts=5, backoff=3600, longest=3600"))
    assert b"restart 1 of 5 in 3" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher, seconds=10)[0] == 130


def test_the_option_is_the_policys_number_of_restarts(run, tmp_path):
    job = """
with open(f"runs{index}", "a+") as runs:
    runs.write("x")
    sys.exit(3 if runs.tell() == 1 else 0)
"""
    code, _, err = run(job, "--workers", "1", "--max-restarts", "1")
    assert code == 0 and "phalanx: worker 0 left with code 3: restart 1 of 1 in 1.0 s" in err
    assert (tmp_path / "runs0").read_text() == "xx"


# Ports


def test_two_launchers_at_the_same_moment_both_work(launch, tmp_path):
    """Their workers bind the ports plainly, as a careful program does, and meet there."""
    job = """
import socket
addresses = [(host, int(port)) for host, port in (each.split(":") for each in config["cluster"]["worker"])]
with socket.socket() as server:
    server.bind(addresses[index])
    server.listen()
    gate = f"gate{os.getppid()}"
    try:
        os.mkfifo(gate)
    except FileExistsError:
        pass
    open(gate, "w" if index else "r").close()  # both listen
    if index:
        print(socket.create_connection(addresses[0]).recv(7).decode())
    else:
        server.accept()[0].sendall(b"welcome")
"""
    for launcher in [launch(job, *TWO) for _ in range(2)]:
        code, out, err = finish(launcher)
        assert (code, out) == (0, "[worker 1] welcome\n"), err


def test_wanted_ports_are_given_in_order(run):
    first = neighbours()
    _, out, err = run("print(config['cluster']['worker'])", *TWO, "--port", str(first))
    assert f"['127.0.0.1:{first}', '127.0.0.1:{first + 1}']" in out, err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_wanted_port_that_is_taken_is_named_at_once(run, tmp_path, host):
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    first = neighbours()
    with socket.create_server((host, first + 1), family=family, dualstack_ipv6=host == "::"):
        code, _, err = run("open('started', 'w')", *TWO, "--port", str(first), seconds=5)
    assert code == 2
    assert err.splitlines()[-2:] == [
        f"  received: --port {first}: port {first + 1} is taken (Address already in use)",
        "  next:     phalanx run --workers 2 train.py   # takes free ports",
    ]
    assert not (tmp_path / "started").exists()


def test_a_wanted_port_of_another_launcher_is_named_before_its_workers_listen(launch):
    first = neighbours()
    launcher = launch("print('ready')\nsignal.pause()\n", *TWO, "--port", str(first))
    assert b"ready" in launcher.stdout.readline()
    code, _, err = finish(launch("", *TWO, "--port", str(first + 1)), seconds=5)
    assert code == 2 and f"port {first + 1} belongs to another phalanx run" in err
    launcher.terminate()
    assert finish(launcher)[0] == 143


def test_wanted_ports_serve_every_run(run, tmp_path):
    job = """
import socket
host, port = config["cluster"]["worker"][index].split(":")
server = socket.create_server((host, int(port)))
with open(f"runs{index}", "a+") as runs:
    runs.write("x")
    count = runs.tell()
open("gate", "r" if index else "w").close()  # both have started
client = socket.create_connection(server.getsockname())
server.accept()[0].close()  # this end stays in the kernel for a minute
sys.exit(3 if index and count < 3 else 0)
"""
    os.mkfifo(tmp_path / "gate")
    code, _, err = run(job, python=supervise(FAST + "5", port=neighbours()))
    assert code == 0 and (tmp_path / "runs1").read_text() == "xxx", err


def test_a_port_that_another_program_took_first_is_exchanged(run, tmp_path):
    job = """
mine = config["cluster"]["worker"][index]
if index == 0 and not os.path.exists("first"):
    open("first", "w").write(mine)
    sys.exit(f"bind {mine}: Address already in use")
open(f"second{index}", "w").write(mine)
"""
    code, _, err = run(job, *TWO)
    first, second = (tmp_path / "first").read_text(), (tmp_path / "second0").read_text()
    assert code == 0 and first != second, err
    assert f"another program took port {first.split(':')[1]}: new ports, not counted" in err


def test_twenty_starts_and_stops_leave_no_process_and_no_port(launch):
    first = neighbours()
    job = """
import socket
server = socket.create_server(("127.0.0.1", int(config["cluster"]["worker"][index].split(":")[1])))
print("ready")
signal.pause()
"""
    for cycle in range(20):
        launcher = launch(job, *TWO, "--port", str(first))
        ready = {launcher.stdout.readline(), launcher.stdout.readline()}
        assert ready == {b"ready\n", b"[worker 1] ready\n"}, launcher.stderr.read()
        launcher.send_signal(signal.SIGINT if cycle % 2 else signal.SIGTERM)
        assert finish(launcher)[0] == (130 if cycle % 2 else 143)
        for port in (first, first + 1):
            with socket.socket() as server:
                server.bind(("127.0.0.1", port))
