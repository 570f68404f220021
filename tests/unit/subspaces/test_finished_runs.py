"""Is a run that needs no more training kept, and refused where what is kept is damaged?"""

from pathlib import Path

import pytest

import tiny_runs
from thinwire.base.errors import UserError
from thinwire.base.progress import Voice
from thinwire.subspaces import recipe
from tiny_runs import prepared_data
from tiny_subspaces import CONFIG, checkpoint_files


def test_a_finished_run_is_kept(tiny_llama: Path, tiny_folder: Path, tmp_path: Path) -> None:
    run = tiny_runs.copy_of(tiny_llama, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in checkpoint_files(run)}
    said: list[str] = []
    for _ in range(2):
        recipe.train(CONFIG, data=prepared_data(tiny_folder), out=run, voice=Voice(say=said.append))
    assert said == ["already trained, kept", "already trained, kept", "scores: already computed, kept"]
    assert {path.name: path.read_bytes() for path in checkpoint_files(run)} == before


def test_a_finished_run_with_damaged_weights_is_refused(tiny_llama: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """Also where its score is there already."""
    run = tiny_runs.copy_of(tiny_llama, tmp_path / "run")
    recipe.train(CONFIG, data=prepared_data(tiny_folder), out=run)
    newest = checkpoint_files(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    said: list[str] = []
    with pytest.raises(UserError, match="truncated or altered") as caught:
        recipe.train(CONFIG, data=prepared_data(tiny_folder), out=run, voice=Voice(say=said.append))
    assert caught.value.where == str(newest)
    assert said == []
