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
    monkeypatch.setattr(devices.procs, "current_script", lambda: "train.py --epochs 3")
    names = [f"cpu:{i}" for i in range(len(jax.devices()) + 1)]
    with pytest.raises(phalanx.DeviceError) as refused:
        phalanx.MirroredStrategy(devices=names)
    text = str(refused.value)
    assert f"{names[-1]} wanted, but JAX started with {len(jax.devices())} CPU devices" in text
    assert text.split("next:")[1].strip() == f"phalanx run --replicas {len(names)} train.py --epochs 3"


def test_cpu_replicas_keep_one_step_in_flight():
    assert devices.steps_in_flight(jax.devices()[:2]) == 1


# ------------------------------------------------------------------------------- a fresh process


def run(code, **environ):
    """Run a script in a process where nobody has prepared anything; only the last test loads Keras."""
    ours = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "NPROC", "KERAS_BACKEND")
    clean = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"JAX_PLATFORMS": "cpu"} | environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


FIND = """
from phalanx.engine import devices
assert not devices.has_started()
found = devices.find({names})
import jax, os
print(*map(devices.name_of, found), "of", len(jax.devices()), "pool", os.environ.get("NPROC"))
"""


@pytest.mark.parametrize(
    ("names", "environ", "said"),
    [
        (["cpu:0", "cpu:6"], {}, "cpu:0 cpu:6 of 7 pool 14"),
        (["cpu:0", "cpu:1"], {"JAX_NUM_CPU_DEVICES": "4", "NPROC": "9"}, "cpu:0 cpu:1 of 4 pool 9"),
        (["cpu:0", "cpu:2"], {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "9"}, "cpu:0 cpu:2 of 3 pool 9"),
        (["cpu:1"], {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, "cpu:1 of 4 pool None"),
        (
            ["cpu:0", "cpu:2"],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "NPROC": "9"},
            "cpu:0 cpu:2 of 3 pool 9",
        ),
        (None, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "cpu:0 cpu:1 of 2 pool None"),
    ],
    ids=["none there", "user has 4", "user has 2", "flag has 4", "flag has 2", "no names"],
)
def test_cpu_replicas_are_made_before_jax_starts_and_what_the_user_set_is_kept(names, environ, said):
    if "pool 14" in said:
        said = f"cpu:0 cpu:6 of 7 pool {max(os.cpu_count(), 14)}"
    assert run(FIND.format(names=names), **environ) == [said]


def test_after_jax_has_started_the_error_holds_the_command_that_works():
    code = """
import jax
jax.devices()
from phalanx.engine import devices
from phalanx.errors import DeviceError
try:
    devices.find(["cpu:0", "cpu:1"])
except DeviceError as error:
    print(error)
print(len(devices.find(["cpu:0"])))
"""
    *text, replicas = run(code)
    assert text[-1].split("next:")[1].strip() == "phalanx run --replicas 2 train.py"
    assert text[-2].endswith("cpu:1 wanted, but JAX started with 1 CPU device")
    assert replicas == "1"


def test_names_and_keras_itself_start_nothing_and_the_first_strategy_makes_its_replicas():
    code = """
import keras, phalanx
phalanx.MirroredStrategy, phalanx.verify, phalanx.has_strategy()
from phalanx.engine import devices
print(devices.has_started())
strategy = phalanx.MirroredStrategy(devices=["cpu:0", "cpu:1"])
print(devices.has_started(), strategy.num_replicas_in_sync, *strategy.device_names)
"""
    assert run(code, KERAS_BACKEND="jax")[-2:] == ["False", "True 2 cpu:0 cpu:1"]
