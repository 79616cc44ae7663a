"""Every chart of the library is a picture in a notebook, though nobody has loaded pyplot."""

import struct
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CHARTS = {
    "gantt": 'pipesched.simulate(pipesched.build("1f1b", 2, 4), costs).plot()',
    "staleness": 'pipesched.versions("pipedream", num_ranks=2, num_microbatches=8).plot()',
    "heat maps": 'pipesched.tune("profiles/data/gpt-10m-epyc.json", batch_size=8, num_devices=2, num_workers=1).plot()',
}


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_is_a_picture_of_its_own_size(chart):
    script = f"""
import sys, pipesched
costs = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0)
figure = {CHARTS[chart]}
assert "matplotlib.pyplot" not in sys.modules
sys.stdout.buffer.write(figure._repr_png_())
sys.stderr.write(repr([*map(int, figure.get_size_inches() * figure.dpi)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.startswith(b"\x89PNG\r\n")
    assert repr([*struct.unpack(">II", done.stdout[16:24])]) == done.stderr.decode()
