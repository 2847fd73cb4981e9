"""How fast a training is, what it waits for and what it holds, seen from one rank.

Invariant: reading it never waits for a device. The clock is read where the host waits anyway: a window ends right after
the loss of its last step was asked for, so a device's queue is empty at both ends.
"""

from collections.abc import Callable

import psutil
import torch

from marin.train.config import TrainConfig
from marin.train.flops import flops_per_token, model_flops_utilization, peak_flops
from marin.train.precision import uses_bfloat16


class Meter:
    """Measures windows of steps; each reading ends one and begins the next."""

    def __init__(
        self, config: TrainConfig, *, world_size: int, device: torch.device, clock: Callable[[], float]
    ) -> None:
        """`config` must be resolved."""
        assert config.model.context is not None
        self._context = config.model.context
        self._flops_per_token = flops_per_token(config.model, self._context, frozen=config.lora is not None)
        self._num_devices = world_size
        self._device = device
        self._peak = config.peak_flops or _known_peak(config, device)
        self._clock = clock
        self._process = psutil.Process()
        self.start(step=0, tokens=0, sequences=0)

    def start(self, *, step: int, tokens: int, sequences: int) -> None:
        """Begin a window here: after the start, a resumption or a return to a checkpoint."""
        self._step, self._tokens, self._sequences = step, tokens, sequences
        self._waited = 0.0
        self._since = self._clock()

    def leave_out(self, seconds: float) -> None:
        """Do not count seconds that were spent on something else than steps, such as held-out sequences."""
        self._since += seconds

    def read(self, *, step: int, tokens: int, sequences: int, waited: float) -> dict[str, float]:
        """Return the numbers of the steps since the last reading.

        `step`, `tokens` (targets), `sequences`: as they are now, over all ranks. `waited`: seconds that this rank has
        waited for data since `start`.

        Returns `tokens_per_second` (targets, all ranks), `step_seconds`, `data_wait_fraction` (0 to 1, of this rank's
        time), `host_memory_bytes` (resident, this rank's process), on a GPU `device_memory_bytes` (most that was
        allocated so far), and where the device's peak is known or given `mfu` (`marin.train.flops`).
        """
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        found = {
            "tokens_per_second": (tokens - self._tokens) / seconds,
            "step_seconds": seconds / max(1, step - self._step),
            "data_wait_fraction": (waited - self._waited) / seconds,
            "host_memory_bytes": int(self._process.memory_info().rss),
        }
        if self._device.type == "cuda":
            found["device_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        if self._peak is not None:
            found["mfu"] = model_flops_utilization(
                tokens_per_second=(sequences - self._sequences) * self._context / seconds,
                flops_per_token=self._flops_per_token,
                num_devices=self._num_devices,
                peak=self._peak,
            )
        self._step, self._tokens, self._sequences = step, tokens, sequences
        self._waited, self._since = waited, now
        return found


def _known_peak(config: TrainConfig, device: torch.device) -> float | None:
    """Return the peak of a GPU that the table knows; a CPU's depends on too much to be told."""
    if device.type != "cuda":
        return None
    return peak_flops(torch.cuda.get_device_name(device), bfloat16=uses_bfloat16(config.precision, device.type))
