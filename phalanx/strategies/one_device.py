"""One replica on one device: the oracle, and the way to debug a distributed script."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from phalanx.engine import devices
from phalanx.errors import DeviceError, message
from phalanx.precision import Precision
from phalanx.strategies.base import Strategy, active


class OneDeviceStrategy(Strategy):
    """The same script on one device, with no special mode.

    Args:
        device: Keras name of the device.
        host_only: Keys of dict features that stay on the host.
        precision: `phalanx.Precision(strict=True)` makes an output that computes in 16 bits an error.

    Raises:
        DeviceError: The device does not exist.

    Example:
        >>> import phalanx
        >>> phalanx.OneDeviceStrategy("cpu:0").num_replicas_in_sync
        1

    References:
        `tf.distribute.OneDeviceStrategy`.
    """

    def __init__(
        self,
        device: str = "cpu:0",
        *,
        host_only: Sequence[str] = (),
        precision: Precision | None = None,
    ) -> None:
        if not isinstance(device, str):
            raise DeviceError(
                message(
                    "device is the Keras name of one device.",
                    f"device={device!r} of type {type(device).__name__}",
                    'phalanx.OneDeviceStrategy("cpu:0")',
                )
            )
        super().__init__([device], host_only=host_only, precision=precision)


@functools.cache
def _default() -> OneDeviceStrategy:
    """The strategy of code that stands in no scope."""
    return OneDeviceStrategy(devices.default_name())


def get_strategy() -> Strategy:
    """The strategy in force, never None.

    Returns:
        The strategy of the open scope (or of the running `fit`), else a default one with one replica.

    Example:
        >>> import phalanx
        >>> phalanx.get_strategy().num_replicas_in_sync
        1
    """
    return active() or _default()


def has_strategy() -> bool:
    """True inside a strategy's scope or loop.

    Example:
        >>> import phalanx
        >>> phalanx.has_strategy()
        False
    """
    return active() is not None
