"""A double of a GPU with its own clock, whose work ends later; it knows each launch, record and wait exactly."""

import numpy as np


class FakeDevice:
    """One stream of a device, driven by the host's time, which passes only where somebody lets it.

    Args:
        drift: How much faster the device's clock goes than the host's.
        latencies_ns: Drawn in turn: an event reaches an idle device so late, and the host hears of it so late.
    """

    def __init__(self, drift=0.0, offset_ns=7_000_000_000, latencies_ns=((0, 0),)):
        self.now_ns = 1_000_000_000_000  # of the host, a quarter of an hour after its start
        self.idle_ns = 0
        self.num_made = self.num_recorded = self.num_waits = 0
        self._drift, self._offset_ns = drift, offset_ns
        self._latencies_ns, self._next = latencies_ns, 0

    def launch(self, work_ns):
        """Launch work that takes so long."""
        self.idle_ns = max(self.idle_ns, self.now_ns) + work_ns

    def read_ns(self):
        return self.now_ns

    def make_event(self):
        self.num_made += 1
        return FakeEvent(self)

    def device_ns(self, host_ns):
        return (1 + self._drift) * (host_ns - 1_000_000_000_000) + self._offset_ns

    def latency_ns(self):
        self._next += 1
        return self._latencies_ns[self._next % len(self._latencies_ns)]


class FakeEvent:
    def __init__(self, device):
        self.device, self.at_ns = device, None

    def record(self):
        self.device.num_recorded += 1
        launch_ns, self._heard_ns = self.device.latency_ns()
        self.at_ns = max(self.device.idle_ns, self.device.now_ns + launch_ns)

    def query(self):
        return self.at_ns is None or self.at_ns <= self.device.now_ns

    def synchronize(self):
        self.device.num_waits += 1
        self.device.now_ns = max(self.device.now_ns, self.at_ns + self._heard_ns)

    def elapsed_time(self, end):
        if end.device is not self.device:
            raise RuntimeError("the events are of two devices")
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        elapsed_ns = self.device.device_ns(end.at_ns) - self.device.device_ns(self.at_ns)
        return float(np.float32(elapsed_ns / 1e6))  # as CUDA gives it
