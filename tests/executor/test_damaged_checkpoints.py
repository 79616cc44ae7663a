"""A checkpoint that is damaged, forged or of another model is refused in a line, before anything is written."""

import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save

from pipesched.executor import RankFailed
from pipesched.executor.runs import launch_training
from pipesched.executor.training import FileDigest, find_checkpoint, read_index, write_index
from pipesched.executor.training.checkpoint_index import write_lasting
from tests.executor.checkpoint_runs import a_job, locally, refused, write_three


@pytest.fixture
def written(tmp_path):
    """Return a folder of checkpoints after 3, 6 and 8 steps, with what an interrupted one has left."""
    write_three(tmp_path)
    return tmp_path


def rewritten(checkpoint, **fields):
    """Give the index of a checkpoint other fields, and the digest that fits; return it as it was."""
    index = read_index(checkpoint)
    write_index(checkpoint, replace(index, **fields))
    return index


def test_damage_is_told_with_the_file_and_the_last_good_checkpoint(written):
    newest, good = written / "step00000008", written / "step00000006"
    assert find_checkpoint(written)[0] == newest
    weights = newest / "rank1-stage1.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    advice = f"the checkpoint is damaged; the last intact checkpoint is {good}; try `resume={good}`"
    for damage in (bytes(data), bytes(data[:-1]), None):
        weights.unlink()
        if damage is not None:
            weights.write_bytes(damage)
        message = refused(find_checkpoint, written)
        assert message.startswith(f"{weights}: got ")
        assert message.endswith(advice)
    index = newest / "index.json"
    index.write_text(index.read_text()[:-20])
    assert refused(find_checkpoint, written).startswith(f"{index}: got ")
    assert refused(find_checkpoint, newest).endswith(advice)
    assert find_checkpoint(good)[1].steps == 6
    locally(a_job("1f1b", written, start=good))
    assert find_checkpoint(written)[0] == newest, "it was written again, and what was left of another removed"
    assert not (written / "step00000009").exists()
    assert (written / "step00000010" / "notes.txt").exists()


def test_a_run_starts_again_from_the_newest_that_is_whole_and_fails_where_none_is(written, monkeypatch):
    indices = [written / f"step0000000{steps}" / "index.json" for steps in (3, 6, 8)]

    def fails(job):
        index = indices.pop()
        index.write_text(index.read_text()[:-20])
        raise RankFailed("rank 1 failed at 1F5 (micro-batch 5): it was killed")

    monkeypatch.setattr("pipesched.executor.runs.training_launcher.run_watched", fails)
    job, restarts = a_job("1f1b", written, start=written / "step00000008"), []
    with pytest.raises(
        RankFailed, match=r"^rank 1 failed at 1F5 .*; the training cannot start again: .*; the checkpoint is damaged"
    ):
        launch_training(job, restarts=5, on_restart=lambda error, steps: restarts.append(steps))
    assert restarts == [6, 3]


def test_a_file_that_does_not_fit_into_memory_is_refused_unread(written):
    """A hole of some terabytes takes no room on disk, and an index that says so may come from anybody."""
    newest, file = written / "step00000008", "rank1-stage1.safetensors"
    os.truncate(newest / file, 2**43)
    rewritten(newest, files={**read_index(newest).files, file: FileDigest(num_bytes=2**43, sha256="0" * 64)})
    assert refused(find_checkpoint, written).startswith(f"{newest / file}: got {2**43} bytes, expected at most ")


def forged(checkpoint, file, **tensors):
    """Give a file of a checkpoint other tensors, by their names with _ for a point, and the digests that fit them."""
    held = load_file(checkpoint / file) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    digest = write_lasting(checkpoint / file, save({name: held[name] for name in held if held[name] is not None}))
    rewritten(checkpoint, files={**read_index(checkpoint).files, file: digest})


WEIGHT, BUFFER = "weights__0__linear__weight", "optimizer__0__linear__weight__momentum_buffer"
NONE = "got no tensor of this name, expected float32 of shape (4, 4)"


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({WEIGHT: None}, f"tensor 'weights.0.linear.weight': {NONE}"),
        ({BUFFER: torch.zeros(3)}, "got float32 of shape (3,), expected float32 of shape (4, 4)"),
        ({WEIGHT: torch.zeros(4, 4).double()}, "got float64 of shape (4, 4), expected float32 of shape (4, 4)"),
        (
            {BUFFER: None, f"{BUFFER}s": torch.zeros(4, 4)},
            "expected none; the state lacks optimizer.0.linear.weight.momentum_buffer",
        ),
        ({"weights__\x1b__" + "x" * 9999: torch.zeros(1)}, "tensor 'weights.\\x1b.xxxxx"),
        ({"reference__0": torch.zeros(4, 4)}, "tensor 'reference.0': got a tensor of this name, expected none;"),
    ],
)
def test_tensors_of_other_names_shapes_and_types_are_refused_before_anything_is_written(tensors, said, written):
    """Ranks that were started would have met them at their first Step."""
    start, good = written / "step00000006", written / "step00000008"
    forged(start, "rank0-stage0.safetensors", **tensors)
    for run in (locally, launch_training):
        message = refused(run, a_job("1f1b", written, start=start))
        assert message.startswith(f"{start / 'rank0-stage0.safetensors'}: tensor ")
        assert said in message
        assert message.endswith(f"; the last intact checkpoint is {good}; try `resume={good}`")
        assert len(message) < 1000
    assert (written / "step00000009").exists(), "an interrupted one, which the run would have removed"
    # every other one has them too: it is the model that differs
    for other in (good, written / "step00000003"):
        forged(other, "rank0-stage0.safetensors", **tensors)
    message = refused(locally, a_job("1f1b", written, start=start))
    assert message.endswith("no other checkpoint is intact; try the model of the checkpoint")


def test_a_reference_or_a_predictor_that_is_not_there_is_missed(tmp_path):
    for scheme, name in (("avgpipe", "reference__0"), ("pipeoptim", "predictor__gradient__0")):
        locally(a_job(scheme, tmp_path / scheme, steps=3))
        start, _ = find_checkpoint(tmp_path / scheme)
        forged(start, "rank0-stage0.safetensors", **{name: None})
        assert f"tensor '{name.replace('__', '.')}': got no " in refused(
            locally, a_job(scheme, start.parent, start=start)
        )


def test_scores_of_another_type_and_an_index_of_other_steps_or_stages_are_refused(written):
    start = written / "step00000008"
    forged(start, "losses.safetensors", scores=torch.zeros(8, 2))
    assert "expected 'scores', float64 of shape (8, 2)" in refused(
        locally, a_job("1f1b", written, start=start, steps=9)
    )
    earlier = written / "step00000006"
    index = rewritten(earlier, run=replace(read_index(earlier).run, partition="2,2,2"))
    message = refused(locally, a_job("gpipe", written, start=earlier))
    assert "run.partition: got '2,2,2', expected 2 stages, one for each file of weights" in message
    write_index(earlier, replace(index, steps=5))
    assert "steps: got 5, expected 6, as in the name of its folder" in refused(find_checkpoint, earlier)


def test_an_index_of_an_earlier_version_is_told_from_a_damaged_one(written):
    path = written / "step00000008" / "index.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}))
    assert "an earlier version of pipesched wrote this checkpoint: continue with that version" in refused(
        find_checkpoint, written
    )


def test_what_is_no_file_is_named_as_what_it_is(written):
    """It is no interrupted checkpoint either, that a run which begins here would remove."""
    newest, good = written / "step00000008", written / "step00000006"
    index = newest / "index.json"
    kept = index.rename(newest / "kept")
    for make, said in (
        (lambda: os.mkfifo(index), "a pipe without a writer"),
        (index.mkdir, "Is a directory"),
        (lambda: index.symlink_to("/dev/zero"), "a device"),
        (lambda: index.symlink_to(written / "nothing"), "No such file"),
        (lambda: index.symlink_to(index), "Too many levels of symbolic links"),
        (lambda: os.mknod(index, stat.S_IFSOCK), "No such device or address"),
    ):
        make()
        message = refused(find_checkpoint, written)
        assert message.startswith(f"{index}: got {said}")
        assert message.endswith(f"try `resume={good}`")
        assert "has checkpoints" in refused(locally, a_job("1f1b", written))
        index.rmdir() if index.is_dir() else index.unlink()
    kept.rename(index)
    assert find_checkpoint(written)[0] == newest


def test_a_link_to_a_folder_is_removed_without_what_it_leads_to(written, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "index.json").write_text("of somebody else")
    (written / "step00000007").symlink_to(elsewhere)
    locally(a_job("1f1b", written, start=written / "step00000006"))
    assert [path.name for path in elsewhere.iterdir()] == ["index.json"]
    assert not (written / "step00000007").is_symlink()


def places(document, *before):
    """Yield the place of every value of a JSON document."""
    for key, value in document.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, *before, key)


WRONG = [
    *("null", "true", "-1", "1.5", "1e400", "NaN", "-Infinity", "1" + "0" * 5000, '""', '"x"', '"../../x"', "[]", "{}"),
    *('[[["a"]]]', '{"a": {"b": []}}', '"' + "9" * 9999 + '"', '"' + "9," * 9999 + '9"', "[" * 900 + "]" * 900),
    *('"\\ud800"', '"\\u001b[31m"'),
]


def test_an_index_with_a_wrong_value_anywhere_is_refused_in_a_line(written):
    path = written / "step00000008" / "index.json"
    document = json.loads(path.read_text())
    for *folders, key in places(document):
        for wrong in (None, *WRONG):
            changed = inner = json.loads(json.dumps(document))
            for folder in folders:
                inner = inner[folder]
            if json.dumps(inner.pop(key)) == wrong or (key, wrong) == ("version", "true"):  # it is 1 in Python
                continue
            if wrong is not None:
                inner[key] = "HERE"
            path.write_text(json.dumps(changed).replace('"HERE"', wrong or ""))
            message = refused(read_index, path.parent)
            assert message.startswith(f"{path}: "), (folders, key, wrong)
            assert "expected" in message, (folders, key, wrong)
            assert len(message) < 2000, (folders, key, wrong)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "rank0-stage99999999999.safetensors", "", "a\0b"])
def test_an_index_names_files_of_its_own_folder_only(name, written):
    start = written / "step00000008"
    rewritten(start, files={**read_index(start).files, name: FileDigest(num_bytes=0, sha256="0" * 64)})
    message = refused(find_checkpoint, start)
    assert message.startswith(f"{start / 'index.json'}: files.")
    assert "expected" in message


@pytest.mark.parametrize("partition", ["", "6,x", "3,-3", "3, 3", "٣,٣", "9" * 5000, "0,6", "3.0,3", ","])
def test_a_partition_that_is_no_list_of_layers_is_refused(partition, written):
    start = written / "step00000006"
    rewritten(start, run=replace(read_index(start).run, partition=partition))
    assert refused(read_index, start).startswith(f"{start / 'index.json'}: run.partition: got ")


@pytest.mark.parametrize("partition", ["6", "1,1,1,1,1,1", "1,1", "999999999,999999999"])
def test_a_partition_of_another_model_is_refused(partition, written):
    start = written / "step00000006"
    rewritten(start, run=replace(read_index(start).run, partition=partition))
    assert "expected" in refused(locally, a_job("gpipe", written, start=start))


def test_a_checkpoint_without_one_of_its_files_is_refused(written):
    start = written / "step00000006"
    files = read_index(start).files
    for missing in files:
        rewritten(start, files={name: files[name] for name in files if name != missing})
        for scheme in ("gpipe", "1f1b"):
            assert "expected" in refused(locally, a_job(scheme, written, start=start))
