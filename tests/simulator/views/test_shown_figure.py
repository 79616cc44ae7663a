"""Every chart of the library is a picture in a notebook, though nobody has loaded pyplot."""

import base64
import json
import struct
import subprocess
import sys

import pytest

SCRIPT = """
import base64, json, sys, pipesched
costs = pipesched.DeviceCost(forward_s=1.0, backward_s=2.0)
profile = "profiles/data/gpt-10m-epyc.json"
figures = {
    "gantt": pipesched.simulate(pipesched.build("1f1b", 2, 4), costs).plot(),
    "staleness": pipesched.versions("pipedream", num_ranks=2, num_microbatches=8).plot(),
    "heat maps": pipesched.tune(profile, batch_size=2, num_devices=2, num_workers=1).plot(),
}
assert "matplotlib.pyplot" not in sys.modules
sizes = {chart: [*map(int, figure.get_size_inches() * figure.dpi)] for chart, figure in figures.items()}
pictures = {chart: base64.b64encode(figure._repr_png_()[:24]).decode() for chart, figure in figures.items()}
print(json.dumps([sizes, pictures]))
"""


@pytest.mark.slow
def test_a_chart_is_a_picture_of_its_own_size():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    sizes, pictures = json.loads(done.stdout)
    for chart, picture in pictures.items():
        begun = base64.b64decode(picture)
        assert begun.startswith(b"\x89PNG\r\n")
        assert [*struct.unpack(">II", begun[16:24])] == sizes[chart]
