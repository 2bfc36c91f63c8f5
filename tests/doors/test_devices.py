"""Devices by their names; CPU replicas are made while they can be, and the way to them is said when not."""

import os
import subprocess
import sys

import jax
import pytest

import phalanx
from phalanx.engine import devices

assert len(jax.devices()) >= 8, "these tests need eight CPU devices"


# ------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["cpu:0"], [0]),
        (["cpu:1", "cpu:0"], [1, 0]),
        (("CPU:2", " cpu:3 "), [2, 3]),
        (["/device:CPU:4", "device:cpu:5"], [4, 5]),
        (["cpu:007"], [7]),
    ],
)
def test_names_are_read_in_their_order_and_in_tensorflows_spelling_too(names, ids):
    assert [device.id for device in devices.find(names)] == ids


def test_no_names_are_all_local_devices():
    assert devices.find(None) == jax.local_devices()


def test_names_of_devices_are_keras_names():
    assert devices.name_of(jax.devices()[3]) == "cpu:3"
    assert devices.default_name() == "cpu:0"


@pytest.mark.parametrize(
    ("names", "quoted", "paste"),
    [
        ("cpu:0", "devices='cpu:0' of type str", "devices=['cpu:0']"),
        (2, "devices=2 of type int", "devices=['cpu:0', 'cpu:1']"),
        ([0, 1], "devices=[0, 1] of type list", "devices=['cpu:0', 'cpu:1']"),
        ([], "empty list", "phalanx.MirroredStrategy()"),
        (["cpu"], "'cpu' in", '["cpu:0", "cpu:1"]'),
        (["cpu:-1"], "'cpu:-1' in", '["cpu:0", "cpu:1"]'),
        (["cpu:0x"], "'cpu:0x' in", '["cpu:0", "cpu:1"]'),
        (["0:cpu"], "'0:cpu' in", '["cpu:0", "cpu:1"]'),
        ([""], "'' in", '["cpu:0", "cpu:1"]'),
        (["cpu:1", "cpu:0", "cpu:1"], "cpu:1 twice", "devices=['cpu:1', 'cpu:0']"),
        (["cpu:0", "CPU:0"], "cpu:0 twice", "devices=['cpu:0']"),
        (["cpu:0", "gpu:0"], "devices=['cpu:0', 'gpu:0']", "devices=['cpu:0']"),
        (["gpu:0", "gpu:1"], "no 'gpu' platform", "devices=['cpu:0', 'cpu:1'"),
        (["warp:0"], "no 'warp' platform", "devices=['cpu:0'"),
    ],
)
def test_names_that_do_not_fit_are_quoted_with_the_line_that_does(names, quoted, paste):
    with pytest.raises(phalanx.DeviceError) as refused:
        phalanx.MirroredStrategy(devices=names)
    text = str(refused.value)
    assert quoted in text.split("next:")[0]
    assert paste in text.split("next:")[1]
    assert isinstance(refused.value, ValueError)


def test_more_replicas_than_devices_names_the_missing_and_the_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    names = [f"cpu:{i}" for i in range(len(jax.devices()) + 1)]
    with pytest.raises(phalanx.DeviceError) as refused:
        phalanx.MirroredStrategy(devices=names)
    text = str(refused.value)
    assert f"{names[-1]} wanted, but JAX started with {len(jax.devices())} CPU devices" in text
    assert f"phalanx run --replicas {len(names)} train.py" in text.split("next:")[1]


def test_cpu_replicas_keep_one_step_in_flight():
    assert devices.steps_in_flight(jax.devices()[:2]) == 1


# ------------------------------------------------------------------------------- a fresh process


def run(code, **environ):
    """Run a script file named train.py in a process where nobody has prepared anything."""
    ours = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC", "KERAS_BACKEND")
    clean = {k: v for k, v in os.environ.items() if k not in ours}
    script = f"import sys; sys.argv = ['train.py']\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | {"JAX_PLATFORMS": "cpu"} | environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


REPLICAS = """
import phalanx
strategy = phalanx.MirroredStrategy(devices={names})
import jax, os
print(strategy.num_replicas_in_sync, len(jax.devices()), *strategy.device_names, os.environ.get("NPROC"))
"""


@pytest.mark.parametrize(
    ("names", "environ", "said"),
    [
        (["cpu:0", "cpu:1"], {}, ["2", "2", "cpu:0", "cpu:1"]),
        (["cpu:3"], {}, ["1", "4", "cpu:3"]),
        (None, {}, ["1", "1", "cpu:0"]),
        (["cpu:0", "cpu:1"], {"JAX_NUM_CPU_DEVICES": "4"}, ["2", "4", "cpu:0", "cpu:1"]),
        (["cpu:0", "cpu:1", "cpu:2"], {"JAX_NUM_CPU_DEVICES": "2"}, ["3", "3", "cpu:0", "cpu:1", "cpu:2"]),
        (
            ["cpu:0", "cpu:1"],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            ["2", "4", "cpu:0", "cpu:1"],
        ),
        (
            None,
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            ["2", "2", "cpu:0", "cpu:1"],
        ),
    ],
    ids=["none there", "a later one", "no names", "user has 4", "user has 2", "flag has 4", "flag alone"],
)
def test_cpu_replicas_are_made_before_jax_starts_and_the_users_number_is_kept(names, environ, said):
    words = run(REPLICAS.format(names=names), **environ)[-1].split()
    assert words[:-1] == said


def test_more_replicas_than_the_users_xla_flag_are_made_or_refused_with_the_command():
    code = """
import phalanx
try:
    print(phalanx.MirroredStrategy(devices=["cpu:0", "cpu:1", "cpu:2"]).num_replicas_in_sync)
except phalanx.DeviceError as error:
    print(str(error).splitlines()[-1])
"""
    last = run(code, XLA_FLAGS="--xla_force_host_platform_device_count=2")[-1]
    assert last == "3" or "phalanx run --replicas 3 train.py" in last


def test_made_replicas_get_a_thread_pool_that_all_of_them_fit_in():
    words = run(REPLICAS.format(names=[f"cpu:{i}" for i in range(8)]))[-1].split()
    assert words[0] == "8" and int(words[-1]) >= 16
    words = run(REPLICAS.format(names=["cpu:0", "cpu:1"]), NPROC="7")[-1].split()
    assert words[-1] == "7", "the user's own number is kept"


def test_after_jax_has_started_the_error_holds_the_command_that_works():
    code = """
import jax
jax.devices()
import phalanx
try:
    phalanx.MirroredStrategy(devices=["cpu:0", "cpu:1"])
except phalanx.DeviceError as error:
    print(error)
print(phalanx.MirroredStrategy(devices=["cpu:0"]).num_replicas_in_sync)
"""
    *text, replicas = run(code)
    assert text[-1].split("next:")[1].strip() == "phalanx run --replicas 2 train.py"
    assert "cpu:1 wanted, but JAX started with 1 CPU device" in text[-2] and not text[-2].endswith("devices")
    assert replicas == "1"


def test_importing_and_describing_names_does_not_start_jax():
    code = """
import phalanx
phalanx.Strategy, phalanx.verify, phalanx.get_strategy, phalanx.has_strategy()
from phalanx.engine import devices
print(devices.has_started())
phalanx.OneDeviceStrategy("cpu:0")
print(devices.has_started())
"""
    assert run(code)[-2:] == ["False", "True"]
