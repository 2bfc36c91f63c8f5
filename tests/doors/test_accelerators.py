"""Accelerators, decided from listings of machines that we do not have."""

import pytest

from phalanx.host import accelerators
from phalanx.host.accelerators import Accelerators, judge

CUDA = {"jax", "jax_cuda13_plugin"}


def nodes(start, count):
    return {f"{start}{index}": "" for index in range(count)}


def pci(*cards):
    """Cards given as (vendor, device)."""
    root = "/sys/bus/pci/devices"
    listing = {}
    for index, (vendor, device) in enumerate(cards):
        listing |= {f"{root}/{index}/vendor": vendor, f"{root}/{index}/device": device}
    return listing


def test_an_empty_machine_has_none():
    assert judge({}, CUDA) == Accelerators()


@pytest.mark.parametrize(("driver", "devices", "count"), [(2, 2, 2), (8, 1, 1), (2, 0, 2), (0, 3, 3)])
def test_nvidia_gpus_are_those_that_can_be_opened(driver, devices, count):
    listing = nodes("/proc/driver/nvidia/gpus/0000:0", driver) | nodes("/dev/nvidia", devices)
    assert judge(listing, CUDA) == Accelerators("NVIDIA GPU", count, usable=True)


def test_the_gpu_of_wsl_is_one():
    assert judge({"/usr/lib/wsl/lib/libcuda.so": ""}, CUDA).count == 1


@pytest.mark.parametrize(
    "installed", [set(), {"jax_cuda13_pjrt"}, {"jax_rocm7_plugin"}, {"my_jax_cuda13_plugin"}]
)
def test_a_gpu_without_its_own_plugin_is_not_usable(installed):
    assert judge(nodes("/dev/nvidia", 1), installed) == Accelerators("NVIDIA GPU", 1, usable=False)


def test_amd_processors_are_not_counted_as_gpus():
    root = "/sys/class/kfd/kfd/topology/nodes"
    listing = {f"{root}/{i}/gpu_id": text for i, text in enumerate(["0", "0", "51234", "60000", ""])}
    assert judge(listing, {"jax_rocm7_plugin"}) == Accelerators(), "no /dev/kfd, no way in"
    listing["/dev/kfd"] = ""
    assert judge(listing, {"jax_rocm7_plugin"}) == Accelerators("AMD GPU", 2, usable=True)


def test_tpus_are_counted_by_their_nodes():
    assert judge(nodes("/dev/accel", 4), {"libtpu"}) == Accelerators("TPU", 4, usable=True)


def test_vfio_nodes_are_tpus_only_where_google_chips_are():
    vfio = nodes("/dev/vfio/", 4)
    network_card = ("0x1ae0", "0x0042")
    assert judge(vfio | pci(network_card), {"libtpu"}) == Accelerators()
    chips = pci(network_card, *[("0x1ae0", "0x0063")] * 4)
    assert judge(vfio | chips, {"libtpu"}) == Accelerators("TPU", 4, usable=True)
    assert judge(chips, {"libtpu"}) == Accelerators(), "a container that may not open them"


def test_chips_of_two_cores_count_twice():
    listing = nodes("/dev/accel", 4) | pci(*[("0x1ae0", "0x0027")] * 4)
    assert judge(listing, {"libtpu"}) == Accelerators("TPU", 8, usable=True, devices_per_chip=2)


def test_looking_at_this_machine_works_whatever_is_there():
    found = accelerators.look()
    assert (found.kind is None) == (found.count == 0)


def test_files_that_cannot_be_read_and_folders_that_are_gone_are_nothing(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert accelerators._read(str(tmp_path / "binary")) == accelerators._read(str(tmp_path / "gone")) == ""
    assert accelerators._names(str(tmp_path / "gone")) == []
