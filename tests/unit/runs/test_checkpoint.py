"""Is a checkpoint whole or absent, and is a damaged one refused with what to do?"""

from pathlib import Path

import pytest
import torch

from thinwire.base.errors import UserError
from thinwire.runs import checkpoint

TENSORS = {"weights": torch.arange(6.0).reshape(2, 3), "moments": torch.ones(4)}
SHAPES = {"weights": (2, 3), "moments": (4,)}


def save(folder: Path, update: int, *, keep: int | None = None) -> None:
    checkpoint.save(folder, update, tensors=TENSORS, meta={"number": update}, keep=keep)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    tensors = TENSORS | {"turned": TENSORS["weights"].T}
    checkpoint.save(tmp_path, 5, tensors=tensors, meta={"loss": 0.1 + 0.2})
    loaded = checkpoint.load(tmp_path, 5, shapes=SHAPES)
    assert (loaded.update, loaded.meta) == (5, {"loss": 0.1 + 0.2})
    assert loaded.tensors.keys() == tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in tensors.items())


def test_only_the_newest_are_kept_and_the_first(tmp_path: Path) -> None:
    for update in (0, 10, 20, 30, 40):
        save(tmp_path, update, keep=2)
    assert checkpoint.list_updates(tmp_path) == [0, 30, 40]
    assert len(list(tmp_path.iterdir())) == 6


def test_weights_without_a_description_are_no_checkpoint_and_are_swept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "00000002.json").unlink()
    (tmp_path / "00000003.safetensors.tmp").write_bytes(b"half")
    assert checkpoint.list_updates(tmp_path) == [1]
    checkpoint.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.json", "00000001.safetensors"]


def test_an_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert checkpoint.list_updates(tmp_path / "none") == []
    checkpoint.sweep(tmp_path / "none")


def test_a_missing_checkpoint_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint") as caught:
        checkpoint.load(tmp_path, 7)
    assert caught.value.where == str(tmp_path / "00000007.json")


def test_every_truncation_of_the_weights_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    weights = tmp_path / "00000001.safetensors"
    data = weights.read_bytes()
    for size in range(len(data)):
        weights.write_bytes(data[:size])
        with pytest.raises(UserError, match="truncated or altered") as caught:
            checkpoint.load(tmp_path, 1)
        assert caught.value.where == str(weights)
        assert "remove 00000001.json and 00000001.safetensors" in caught.value.fix


def test_the_fix_tells_where_the_job_goes_on(tmp_path: Path) -> None:
    for update in (3, 6):
        save(tmp_path, update)
        (tmp_path / f"{update:08d}.safetensors").write_bytes(b"")
    for update, where in ((3, "the job begins anew"), (6, "the job goes on from the checkpoint before and its log")):
        with pytest.raises(UserError) as caught:
            checkpoint.load(tmp_path, update)
        assert caught.value.fix.endswith(where)


def test_every_truncation_of_the_description_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    description = tmp_path / "00000001.json"
    data = description.read_bytes().rstrip()
    for size in range(len(data)):
        description.write_bytes(data[:size])
        with pytest.raises(UserError, match=r"00000001\.json"):
            checkpoint.load(tmp_path, 1)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"update": 1, "meta": {}}', '{"update": "1", "sha256": "", "meta": {}}']
)
def test_a_description_that_is_another_file_is_refused(tmp_path: Path, content: str) -> None:
    save(tmp_path, 1)
    (tmp_path / "00000001.json").write_text(content)
    with pytest.raises(UserError, match="not a checkpoint's description"):
        checkpoint.load(tmp_path, 1)


def test_another_shape_or_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for shapes in ({"weights": (3, 2)}, {"other": (1,)}):
        with pytest.raises(UserError, match="another shape"):
            checkpoint.load(tmp_path, 1, shapes=shapes)
