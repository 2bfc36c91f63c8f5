"""The ports that launchers choose for their workers."""

import socket

import pytest

from phalanx.errors import SettingError
from phalanx.host.ports import choices, claim
from tests.fleet.launching import neighbours


@pytest.mark.parametrize(
    ("lent", "chosen"),
    [
        ((32768, 60999), range(20000, 32768)),
        ((10000, 61000), range(61001, 65536)),
        ((1024, 65535), range(20000, 65536)),
    ],
)
def test_ports_are_chosen_from_those_that_the_kernel_does_not_lend(lent, chosen):
    assert choices(*lent) == chosen


def test_claims_share_no_port_and_leave_every_port_free_to_bind_plainly():
    with claim(50, None) as one, claim(50, None) as other:
        assert len({*one, *other}) == 100
        for port in (*one, *other):
            with socket.socket() as plain:
                plain.bind(("127.0.0.1", port))


def test_a_claimed_port_is_refused_until_the_claim_ends():
    with claim(1, None) as (port,):
        with pytest.raises(SettingError, match=f"--port {port}: port {port} belongs to another phalanx run"):
            with claim(1, port):
                pass
    with claim(1, port) as again:
        assert again == [port]


def test_a_refused_claim_keeps_none_of_its_ports():
    first = neighbours()
    with claim(1, first + 1):
        with pytest.raises(SettingError, match=f"--port {first}: port {first + 1} belongs"):
            with claim(2, first):
                pass
        with claim(1, first) as ports:
            assert ports == [first]


def test_a_port_that_is_connected_but_listened_to_by_nobody_is_free():
    """Ends of old connections wait in the kernel for a minute and take nothing from a new run."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            server.accept()[0].close()
    with claim(1, address[1]) as ports:
        assert ports == [address[1]]
