"""The whole model on every local device, the batch split among them."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.precision import Precision
from phalanx.strategies.base import Strategy


class MirroredStrategy(Strategy):
    """Synchronous data parallelism over the devices of one machine.

    Every replica holds the whole model and takes its share of each global batch; all apply the same update.
    In the global view the numbers are those of one device on the same global batch, for any number of rows.

    Args:
        devices: Keras device names, such as `["gpu:0", "gpu:1"]` or `["cpu:0", "cpu:1"]` (CPU replicas are
            made if JAX has not started); None for every local accelerator, or every CPU device.
        view: `"global"` (exact, the default) or `"replica"` (batch-norm and dropout per replica, as in
            tf.distribute).
        host_only: Keys of dict features that stay on the host, such as string ids.
        precision: `phalanx.Precision(strict=True)` makes an output that computes in 16 bits an error; it is a
            warning otherwise.

    Raises:
        DeviceError: Names that are malformed, unknown, given twice or more than there are.
        SettingError: An unknown view, or a setting of another type.

    Example:
        >>> import phalanx
        >>> strategy = phalanx.MirroredStrategy(devices=["cpu:0"])
        >>> strategy.num_replicas_in_sync
        1

    References:
        Goyal et al. 2017, "Accurate, Large Minibatch SGD"; `tf.distribute.MirroredStrategy`;
        GSPMD (Xu et al. 2021) for the global view.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        view: str = "global",
        host_only: Sequence[str] = (),
        precision: Precision | None = None,
    ) -> None:
        super().__init__(devices, view=view, host_only=host_only, precision=precision)
