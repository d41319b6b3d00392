"""Which models are served: names and folders, what each can do, and that a folder may go while its model goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import TASKS, write_tuned

from bertworks.errors import InputError, SettingsError
from bertworks.serving.answers import embed_work, predict_work
from bertworks.serving.models import ServedModel, load_served_model, named_folders


@pytest.fixture(scope="module")
def served(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    return {name: load_served_model(name, folder, lambda: None) for name, folder in folders.items()}


def test_a_model_can_do_what_its_heads_allow(served):
    assert served["classify"].capabilities == ("predict", "embed", "tokenize", "attention", "explain")
    assert served["pretrained"].capabilities == ("fill", "next", "embed", "tokenize", "attention")
    assert served["sentences"].capabilities == ("fill", "next", "embed", "tokenize", "attention")


def test_a_model_tells_its_task_its_labels_and_how_much_it_reads(served):
    told = served["classify"].to_dict()
    assert (told["task"], told["labels"], told["length"]) == ("classify", ["bad", "good"], 32)
    assert "fine-tuned to classify from pretrained" in told["description"]
    assert served["pretrained"].to_dict()["task"] is None
    assert served["answer"].to_dict()["labels"] is None
    assert served["sentences"].length == 16


def test_a_model_goes_on_when_its_folder_is_gone(tmp_path, one_thread):
    folder = write_tuned(tmp_path / "model", TASKS["classify"])
    one = load_served_model("one", folder, lambda: None)
    before = one.model.predict(["a good film"])[0].logits
    shutil.rmtree(folder)
    work = predict_work(one, ["a good film"], False, "text")
    assert (work.queue.compute(work.items)[0] == before).all()
    vectors = embed_work(one, ["a good film"], "mean", False)
    assert vectors.finish(vectors.queue.compute(vectors.items)).values.shape == (1, 24)


def test_weights_that_are_overwritten_under_a_loaded_model_do_not_change_it(tmp_path, one_thread):
    folder = write_tuned(tmp_path / "model", TASKS["classify"])
    one = load_served_model("one", folder, lambda: None)
    before = one.model.predict(["a good film"])[0].logits
    size = (folder / "model.safetensors").stat().st_size
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * size)
        file.truncate(10)  # a mapped file that shrinks ends whoever still reads from it
    assert (one.model.predict(["a good film"])[0].logits == before).all()


def test_models_are_named_as_told_or_by_their_folders(tmp_path, folders):
    run = tmp_path / "sst2"
    shutil.copytree(folders["classify"], run / "model")
    assert named_folders([f"spam={folders['tag']}"]) == {"spam": str(folders["tag"])}
    assert named_folders([str(run)]) == {"sst2": str(run / "model")}
    assert named_folders([str(run / "model")]) == {"sst2": str(run / "model")}
    assert named_folders([f"x={run}", "hub=owner/name"]) == {"x": str(run / "model"), "hub": "owner/name"}


def test_names_that_cannot_stand_in_an_address_and_names_given_twice_are_refused(folders):
    with pytest.raises(InputError, match="NAME=FOLDER"):
        named_folders([f"a b={folders['tag']}"])
    with pytest.raises(SettingsError, match="two models are called 'one'"):
        named_folders([f"one={folders['tag']}", f"one={folders['answer']}"])


def test_serving_imports_neither_training_nor_runs():
    code = (
        "import sys, bertworks.serving.server, bertworks.serving.bundle; "
        "print([m for m in sys.modules if m.startswith(('bertworks.training', 'bertworks.runs'))])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
