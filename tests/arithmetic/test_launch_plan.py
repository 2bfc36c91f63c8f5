"""What local workers get: addresses, replicas, GPUs and memory."""

import json

import pytest

from phalanx.errors import DeviceError, SettingError, UnsupportedError
from phalanx.host.accelerators import Accelerators
from phalanx.launch.plan import plan_workers, with_address

NONE = Accelerators()


def gpus(count, kind="NVIDIA GPU"):
    return Accelerators(kind, count, usable=True)


def plan(workers, replicas=None, found=NONE, cpus=2, **environ):
    return plan_workers(workers, replicas, environ, found, cpus)


def each(decided, name):
    return [changes.get(name) for changes in decided.changes]


def test_every_worker_knows_all_addresses_on_loopback_and_its_own_place():
    for index in range(3):
        config = json.loads(with_address(index, [7001, 7005, 7003], {}, {})["TF_CONFIG"])
        assert config == {
            "cluster": {"worker": ["127.0.0.1:7001", "127.0.0.1:7005", "127.0.0.1:7003"]},
            "task": {"type": "worker", "index": index},
        }


def test_one_worker_is_a_cluster_of_one():
    decided = plan(1)
    assert decided.reason.startswith("1 worker x 1 CPU replica")
    config = json.loads(with_address(0, [7001], decided.changes[0], {})["TF_CONFIG"])
    assert config["cluster"] == {"worker": ["127.0.0.1:7001"]}


def test_the_engine_of_the_chief_listens_on_loopback_only():
    assert with_address(0, [7001, 7002], {}, {})["JAX_COORDINATOR_BIND_ADDRESS"] == "127.0.0.1:7001"
    assert "JAX_COORDINATOR_BIND_ADDRESS" not in with_address(1, [7001, 7002], {}, {})
    mine = {"JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:1"}
    assert with_address(0, [7001], {}, mine) == {
        **mine,
        "TF_CONFIG": with_address(0, [7001], {}, {})["TF_CONFIG"],
    }


def test_cpu_workers_get_replicas_as_a_single_process_does_and_no_gpu_variable():
    decided = plan(2, 2)
    assert decided.reason == "2 workers x 2 CPU replicas (no accelerator found)"
    assert (
        decided.changes
        == [
            {
                "KERAS_BACKEND": "jax",
                "NPROC": "4",
                "JAX_NUM_CPU_DEVICES": "2",
                "JAX_PLATFORMS": "cpu",
                "PYTHONUNBUFFERED": "1",
            }
        ]
        * 2
    )


def test_cpu_workers_without_a_number_change_nothing_but_the_backend_and_buffering():
    assert plan(2).changes == [{"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1"}] * 2


def test_values_of_the_user_win():
    mine = {
        "PYTHONUNBUFFERED": "x",
        "NPROC": "3",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".2",
    }
    decided = plan(2, found=gpus(1), **mine)
    assert not any(name in changes for changes in decided.changes for name in mine)
    other = plan(2, found=gpus(1), XLA_CLIENT_MEM_FRACTION=".3")  # JAX refuses both names at once
    assert each(other, "XLA_PYTHON_CLIENT_MEM_FRACTION") == [None, None]


def test_a_topology_of_the_user_gives_way_to_the_number_of_workers_and_it_is_said():
    assert plan(2, TF_CONFIG="{}").reason.endswith("; --workers wins over TF_CONFIG")
    assert with_address(0, [7001], {}, {"TF_CONFIG": "{}"})["TF_CONFIG"] != "{}"


@pytest.mark.parametrize(
    ("workers", "replicas", "count", "chosen", "lists", "reason"),
    [
        (2, None, 4, None, ["0,1", "2,3"], "2 workers x 2 NVIDIA GPUs (0,1 | 2,3)"),
        (2, 1, 4, None, ["0", "1"], "2 workers x 1 NVIDIA GPU (0 | 1; 2 of 4 idle)"),
        (2, None, 5, None, ["0,1", "2,3"], "2 workers x 2 NVIDIA GPUs (0,1 | 2,3; 1 of 5 idle)"),
        (2, None, 4, "3,1", ["3", "1"], "2 workers x 1 NVIDIA GPU (3 | 1)"),
        (1, None, 2, None, ["0,1"], "1 worker x 2 NVIDIA GPUs (0,1)"),
    ],
)
def test_gpus_are_shared_out_to_neighbours(workers, replicas, count, chosen, lists, reason):
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    decided = plan(workers, replicas, gpus(count), **environ)
    assert each(decided, "CUDA_VISIBLE_DEVICES") == lists
    assert each(decided, "XLA_PYTHON_CLIENT_MEM_FRACTION") == [None] * workers
    assert decided.reason == reason and decided.warning is None


def test_amd_gpus_are_shared_out_by_their_own_variable():
    assert each(plan(2, found=gpus(2, "AMD GPU")), "HIP_VISIBLE_DEVICES") == ["0", "1"]


@pytest.mark.parametrize(
    ("workers", "count", "lists", "fractions"),
    [
        (2, 1, ["0", "0"], ["0.45", "0.45"]),
        (3, 1, ["0"] * 3, ["0.30"] * 3),
        (3, 2, ["0", "0", "1"], ["0.45", "0.45", "0.90"]),
    ],
)
@pytest.mark.parametrize("replicas", [None, 1])
def test_workers_on_one_gpu_share_its_memory(workers, count, lists, fractions, replicas):
    decided = plan(workers, replicas, gpus(count))
    assert each(decided, "CUDA_VISIBLE_DEVICES") == lists
    assert each(decided, "XLA_PYTHON_CLIENT_MEM_FRACTION") == fractions
    assert decided.reason.endswith("shared)")
    assert f"{workers} workers on {count} NVIDIA GPU" in decided.warning


def test_more_replicas_than_gpus_is_an_error_with_all_numbers():
    with pytest.raises(DeviceError, match="--workers 2 --replicas 3, but 4 visible NVIDIA GPUs"):
        plan(2, 3, gpus(4))


def test_gpus_that_jax_will_not_use_are_not_shared_out():
    decided = plan(2, 2, gpus(4), JAX_PLATFORMS="cpu")
    assert each(decided, "CUDA_VISIBLE_DEVICES") == [None, None]
    assert decided.reason == "2 workers x 2 CPU replicas (JAX_PLATFORMS=cpu)"


def test_a_tpu_host_has_one_worker():
    chips = Accelerators("TPU", 4, usable=True)
    assert plan(1, found=chips).reason == "1 worker x 4 TPUs"
    with pytest.raises(UnsupportedError, match="--workers 2 on 4 TPU devices"):
        plan(2, found=chips)


def test_another_keras_backend_is_refused():
    with pytest.raises(SettingError, match="KERAS_BACKEND=torch"):
        plan(2, KERAS_BACKEND="torch")


def test_many_cpu_replicas_are_counted_over_all_workers():
    assert plan(8, 8).warning is None
    assert "72 replicas on 2 cores" in plan(9, 8).warning
