"""What is told of folders of training: the step so far, how to continue, the best of a sweep, damaged checkpoints."""

import hashlib
import json
from pathlib import Path

import pytest
from small_models import TASKS, write_finetuned

from bertworks.errors import FolderError
from bertworks.folder_info.kind import FINISHED, UNFINISHED
from bertworks.folder_info.run_kinds import describe_checkpoint, describe_comparison, describe_run, describe_sweep


def write_run(folder: Path, recipe: str, run_info: dict[str, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(recipe)
    if run_info is not None:
        (folder / "run.json").write_text(json.dumps(run_info))
    return folder


def test_an_unfinished_pretraining_run_tells_its_step_and_how_to_continue(tmp_path: Path):
    recipe = "[[phases]]\nsteps = 90\n[[phases]]\nsteps = 10\n"
    run = write_run(tmp_path / "run", recipe, {"corpus_folder": "/c", "machine": {"bertworks": "1.2"}})
    (run / "metrics.jsonl").write_text('{"kind": "step", "step": 41}\n')
    info = describe_run(run)
    assert (info.kind, info.state, info.version) == ("pretraining run", UNFINISHED, "1.2")
    assert (info.facts["step"], info.facts["steps of the recipe"]) == (41, 100)
    assert info.next_command == f"bertworks pretrain {run / 'recipe.toml'} --data /c --output {run}"


def test_a_finished_finetuning_run_tells_what_its_model_is(tmp_path: Path):
    run = write_run(tmp_path / "run", 'task = "classify"\n', {"finished": "2026-01-02"})
    write_finetuned(run / "model", TASKS["classify"])
    info = describe_run(run)
    assert (info.kind, info.state, info.command) == ("fine-tuning run", FINISHED, "bertworks finetune")
    assert info.facts["labels"] == ["bad", "good"]
    assert info.next_command == f"bertworks predict {run / 'model'} TEXTS"


def test_an_adapted_run_continues_from_its_base(tmp_path: Path):
    run = write_run(tmp_path / "run", "", {"corpus_folder": "/c", "base_folder": "/m"})
    info = describe_run(run)
    assert info.command == "bertworks adapt"
    assert info.next_command == f"bertworks adapt /m --data /c --recipe {run / 'recipe.toml'} --output {run}"


def test_a_checkpoint_with_another_hash_is_damaged(tmp_path: Path):
    state = '{"step": 7, "num_tokens": 900}'
    (tmp_path / "state.json").write_text(state)
    (tmp_path / "manifest.json").write_text(json.dumps({"state.json": hashlib.sha256(state.encode()).hexdigest()}))
    assert describe_checkpoint(tmp_path).facts["step"] == 7
    (tmp_path / "state.json").write_text(state.replace("7", "8"))
    with pytest.raises(FolderError, match=r"state\.json is damaged"):
        describe_checkpoint(tmp_path)
    (tmp_path / "state.json").unlink()
    with pytest.raises(FolderError, match=r"lacks state\.json"):
        describe_checkpoint(tmp_path)


def test_a_sweep_names_its_best_run(tmp_path: Path):
    names = ["bs16-lr2e-05-epochs2-seed0", "bs16-lr3e-05-epochs2-seed0"]
    for name in names:
        write_run(tmp_path / name, 'task = "classify"\n')
    info = describe_sweep(tmp_path)
    assert (info.state, info.facts["runs"], info.facts["finished runs"]) == (UNFINISHED, 2, 0)
    rows = [{"folder": name, "score": score} for name, score in zip(names, (0.7, 0.8), strict=True)]
    (tmp_path / "sweep.json").write_text(json.dumps(rows))
    info = describe_sweep(tmp_path)
    assert (info.state, info.facts["best run"], info.facts["best dev score"]) == (FINISHED, names[1], 0.8)
    assert info.next_command == f"bertworks predict {tmp_path / names[1] / 'model'} TEXTS"


def test_a_comparison_is_finished_when_every_member_has_every_seed(tmp_path: Path):
    def write(num_scores: int) -> None:
        comparison = {"members": [{"name": "bert"}], "seeds": [0, 1], "tasks": [{"task": "glue/MRPC", "name": ""}]}
        results = [{"member": "bert", "mean_score": {"values": [0.5] * num_scores}}]
        (tmp_path / "compare.json").write_text(json.dumps({"comparison": comparison, "results": results}))

    write(1)
    info = describe_comparison(tmp_path)
    assert (info.state, info.facts["tasks"]) == (UNFINISHED, ["glue/MRPC"])
    write(2)
    assert describe_comparison(tmp_path).state == FINISHED
