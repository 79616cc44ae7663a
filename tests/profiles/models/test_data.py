"""The data that models learn from, and what is kept from them."""

import os
import re
import sys

import pytest
import torch

from pipesched.profiles import ProfileError
from pipesched.profiles.models import build_layers, resolve_model
from pipesched.profiles.models.text_data import crops, text_bytes


def test_digits_are_the_scans_of_scikit_learn():
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    known = {tuple(scan): digit for scan, digit in zip(pixels.tolist(), classes.tolist(), strict=True)}
    inputs, targets = resolve_model("digits").batch(200, 7)
    assert [known[tuple((scan * 6 + 5).round().tolist())] for scan in inputs] == targets.tolist()


def test_digits_held_out_are_never_trained_on():
    model = resolve_model("digits")
    seen = {tuple(scan.tolist()) for seed in range(40) for scan in model.batch(400, seed)[0]}
    held_out = {tuple(scan.tolist()) for scan in model.held_out()[0]}
    assert len(held_out) == 297
    assert len(seen) == 1500  # all of them were drawn, and nothing else
    assert not seen & held_out


@pytest.mark.slow
def test_digits_are_learnt():
    model = resolve_model("digits:width=32,blocks=2")
    network = build_layers(model, 0, len(model.layers), seed=0)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(150):
        inputs, targets = model.batch(64, step)
        optimizer.zero_grad()
        model.loss(network(inputs), targets).backward()
        optimizer.step()
    inputs, targets = model.held_out()
    assert (network(inputs).argmax(-1) == targets).float().mean() > 0.9


def test_without_scikit_learn_it_is_said_what_to_install(monkeypatch):
    from pipesched.profiles.models import digits

    digits._scans.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ProfileError, match=r'pip install "pipesched\[digits\]"'):
        resolve_model("digits").batch(1, 0)


def test_a_users_text_is_read_up_to_its_last_twentieth(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)) * 5)
    assert text_bytes(str(path)).tolist() == list(range(200)) * 5
    path = tmp_path / "halves"
    path.write_bytes(b"a" * 950 + b"b" * 50)
    assert set(crops(500, 10, 0, str(path)).flatten().tolist()) == {ord("a")}
    assert set(crops(500, 10, 0, str(path), is_held_out=True).flatten().tolist()) == {ord("b")}


def test_a_gpt_reads_a_users_text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"ab" * 100)
    model = resolve_model(f"gpt:layers=1,width=8,heads=1,context=8,text={path}")
    for inputs, targets in (model.batch(3, 0), model.held_out()):
        assert set(inputs.flatten().tolist()) == {ord("a"), ord("b")}
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert resolve_model(model.name).name == model.name


def test_a_text_that_cannot_serve_is_told_in_one_line(tmp_path):
    with pytest.raises(ProfileError, match="nowhere: got No such file or directory, expected a file that can be read"):
        resolve_model("gpt:text=nowhere").batch(1, 0)
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    with pytest.raises(ProfileError, match="got 3 bytes, expected at least 20 for samples of 9 bytes"):
        resolve_model(f"gpt:context=8,text={path}").batch(1, 0)


@pytest.mark.parametrize("file", ["/dev/zero", "pipe", "."])
def test_a_text_that_may_have_no_end_is_not_read(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(ProfileError, match=f"text {re.escape(file)}: got no regular file, expected one"):
        resolve_model(f"gpt:text={file}").batch(1, 0)


def test_a_text_above_64_mib_is_refused(tmp_path):
    with (tmp_path / "long").open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    with pytest.raises(ProfileError, match=f"text {tmp_path}/long: got more than 67108864 bytes, expected at most"):
        resolve_model(f"lstm:text={tmp_path}/long").batch(1, 0)
