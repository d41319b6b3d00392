"""The damage campaign: a bit, a block or the end of a file is lost at a random place, and the file is used.

Each try ends in one of four ways: refused in a sentence, used with the same result as before, used with another
result, or with an error of ours that nobody explains.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from campaign import Campaigns
from comparable import comparable_files
from damage import damage_randomly, flip_bit, forget_hashes
from exported_models import TASK_INPUTS, finetuned
from outcomes import check_outcome
from small_run import RECIPE, curve, prepare_corpus, run

from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.model import load
from bertworks.serving.bundle import BundleRequest, bundle, read_bundle

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT_RECIPE = replace(RECIPE, phases=(replace(RECIPE.phases[0], steps=6),), warmup_steps=1)

REFUSED, SAME, OTHER, UNEXPLAINED = "refused in a sentence", "without effect", "unnoticed", "tracebacks"
INPUTS = TASK_INPUTS["classify"]


@dataclass(frozen=True)
class Target:
    """What is damaged: a folder, the files of it to choose from, and a use of it, whose result is compared.

    `allowed` are the outcomes that the docs promise; all others fail the campaign.
    """

    build: Callable[[Path], object]
    files: tuple[str, ...]
    use: Callable[[Path], str]
    planned: int
    allowed: tuple[str, ...] = (REFUSED, SAME)


def result_hash(folder: Path) -> str:
    """Return a hash of the model folder and the records of a run."""
    return hashlib.sha256(json.dumps([comparable_files(folder / "model"), curve(folder)]).encode()).hexdigest()


def write_corpus(folder: Path) -> None:
    folder.mkdir()
    prepare_corpus(folder)


def pretrain(folder: Path) -> str:
    run(folder / "corpus", folder / "run", SHORT_RECIPE)
    return result_hash(folder / "run")


def write_stopped_run(folder: Path) -> None:
    write_corpus(folder)
    run(folder / "corpus", folder / "run", RECIPE, stop_after=7)


def resume(folder: Path) -> str:
    run(folder / "corpus", folder / "run", RECIPE)
    return result_hash(folder / "run")


def predict(folder: Path) -> str:
    return repr(load(folder, precision="fp32").predict(INPUTS.texts[:2]))


def write_model(folder: Path) -> None:
    finetuned(folder, INPUTS.task)


def write_foreign_model(folder: Path) -> None:
    write_model(folder)
    forget_hashes(folder)


def write_onnx_model(folder: Path) -> None:
    write_model(folder.with_name("original"))
    export(ExportRequest(model=str(folder.with_name("original")), target="onnx", output=folder))


def write_bundle(folder: Path) -> None:
    data = folder.with_name("bundled")
    write_corpus(data)
    run(data / "corpus", data / "run", SHORT_RECIPE)
    bundle(BundleRequest(runs=(f"books={data / 'run'}",), output=folder, corpus=data / "corpus"))


def open_bundle(folder: Path) -> str:
    return repr(sorted(read_bundle(folder).models))


TARGETS = {
    "corpus shards": Target(write_corpus, ("corpus/tokens/*/*.safetensors",), pretrain, 100),
    "corpus manifests": Target(
        write_corpus,
        ("corpus/manifest.json", "corpus/tokens/*/manifest.json", "corpus/tokens/*/tokenizer.json"),
        pretrain,
        60,
    ),
    "checkpoints": Target(write_stopped_run, ("run/checkpoints/step-00000007/*",), resume, 60),
    "model.safetensors": Target(write_model, ("model.safetensors",), predict, 200),
    "model.onnx": Target(write_onnx_model, ("model.onnx",), predict, 100),
    "vocabulary": Target(write_model, ("vocab.txt", "tokenizer.json"), predict, 100),
    "config.json": Target(write_model, ("config.json",), predict, 100),
    "bertworks.json": Target(write_model, ("bertworks.json",), predict, 200),
    "bundle": Target(write_bundle, ("**/*",), open_bundle, 100),
    "foreign weights": Target(
        write_foreign_model, ("model.safetensors",), predict, 100, allowed=(REFUSED, SAME, OTHER)
    ),
}


def use_damaged(target: Target, folder: Path, expected: str) -> tuple[str, str]:
    """Use a damaged folder; return the outcome, and the error that nobody explains."""
    results: list[str] = []
    try:
        check_outcome(lambda: results.append(target.use(folder)))
    except Exception as error:
        return UNEXPLAINED, repr(error)
    if not results:
        return REFUSED, ""
    return (SAME, "") if results == [expected] else (OTHER, "")


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_refused_in_a_sentence(name: str, campaigns: Campaigns, tmp_path: Path):
    target, campaign = TARGETS[name], campaigns.start(f"damage/{name}", TARGETS[name].planned)
    intact, rng = tmp_path / "intact", campaign.random()
    target.build(intact)
    names = sorted(
        {path.relative_to(intact) for pattern in target.files for path in intact.glob(pattern) if path.is_file()}
    )
    assert names
    shutil.copytree(intact, tmp_path / "used")
    expected = target.use(tmp_path / "used")
    for number in range(campaign.size):
        folder = tmp_path / f"try-{number}"
        shutil.copytree(intact, folder)
        what = damage_randomly(folder / rng.choice(names), rng)
        outcome, error = use_damaged(target, folder, expected)
        campaign.add(outcome, note="" if outcome in target.allowed else f"{what}: {outcome} {error}")
        shutil.rmtree(folder)
    campaign.finish(good=target.allowed, bad=[bad for bad in (OTHER, UNEXPLAINED) if bad not in target.allowed])


def test_a_flipped_bit_is_refused_and_counted_as_such(tmp_path: Path):
    write_model(tmp_path / "model")
    expected = predict(tmp_path / "model")
    target = TARGETS["model.safetensors"]
    assert use_damaged(target, tmp_path / "model", expected) == (SAME, "")
    assert use_damaged(target, tmp_path / "model", "another result") == (OTHER, "")
    flip_bit(tmp_path / "model" / "model.safetensors", -1)
    assert use_damaged(target, tmp_path / "model", expected) == (REFUSED, "")


def test_an_error_that_is_not_ours_is_counted_as_a_traceback(tmp_path: Path):
    def fail(folder: Path) -> str:
        raise KeyError("layers")

    assert use_damaged(Target(write_model, (), fail, 1), tmp_path, "") == (UNEXPLAINED, "KeyError('layers')")
