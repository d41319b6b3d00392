"""Served models: names and folders, capabilities, and independence from the folder after loading."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import TASKS, write_finetuned

from bertworks.errors import InputError, SettingsError
from bertworks.serving.answers import embed_work, predict_work
from bertworks.serving.models import ServedModel, load_served_model, named_folders


@pytest.fixture(scope="module")
def served_models(folders: dict[str, Path], one_thread: None) -> dict[str, ServedModel]:
    return {name: load_served_model(name, folder, lambda: None) for name, folder in folders.items()}


def test_capabilities_depend_on_the_heads(served_models):
    assert served_models["classify"].capabilities == ("predict", "embed", "tokenize", "attention", "explain")
    assert served_models["pretrained"].capabilities == ("fill-mask", "next", "embed", "tokenize", "attention")
    assert served_models["sentences"].capabilities == ("fill-mask", "next", "embed", "tokenize", "attention")


def test_a_model_describes_its_task_inputs_labels_and_length(served_models):
    fields = served_models["classify"].to_dict()
    assert (fields["task"], fields["labels"], fields["max_length"]) == ("classify", ["bad", "good"], 32)
    assert fields["input_fields"] == [["text"], ["sentence1", "sentence2"]]
    assert "fine-tuned for classify from pretrained" in fields["description"]
    assert served_models["pretrained"].to_dict()["task"] is None
    assert served_models["pretrained"].to_dict()["input_fields"] is None
    assert served_models["answer"].to_dict()["labels"] is None
    assert served_models["sentences"].max_length == 16


def test_the_languages_are_those_that_the_folder_records(tmp_path, served_models, one_thread):
    folder = write_finetuned(tmp_path / "model", TASKS["classify"], metadata={"languages": ["en", "zh"]})
    assert load_served_model("model", folder, lambda: None).to_dict()["languages"] == ["en", "zh"]
    assert served_models["classify"].to_dict()["languages"] is None


def test_a_loaded_model_does_not_need_its_folder(tmp_path, one_thread):
    folder = write_finetuned(tmp_path / "model", TASKS["classify"])
    served = load_served_model("served", folder, lambda: None)
    expected = served.model.predict(["a good film"])[0].logits
    shutil.rmtree(folder)
    work = predict_work(served, ["a good film"], False, "text")
    assert (work.queue.compute(work.items)[0] == expected).all()
    work = embed_work(served, ["a good film"], None, False)
    assert work.finish(work.queue.compute(work.items)).values.shape == (1, 24)


def test_overwriting_the_weights_of_a_loaded_model_does_not_change_it(tmp_path, one_thread):
    folder = write_finetuned(tmp_path / "model", TASKS["classify"])
    served = load_served_model("served", folder, lambda: None)
    expected = served.model.predict(["a good film"])[0].logits
    size = (folder / "model.safetensors").stat().st_size
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * size)
        file.truncate(10)  # reading a truncated memory-mapped file would kill the process
    assert (served.model.predict(["a good film"])[0].logits == expected).all()


def test_models_are_named_explicitly_or_by_their_folders(tmp_path, folders):
    run = tmp_path / "sst2"
    shutil.copytree(folders["classify"], run / "model")
    assert named_folders([f"spam={folders['tag']}"]) == {"spam": str(folders["tag"])}
    assert named_folders([str(run)]) == {"sst2": str(run / "model")}
    assert named_folders([str(run / "model")]) == {"sst2": str(run / "model")}
    assert named_folders([f"x={run}", "hub=owner/name"]) == {"x": str(run / "model"), "hub": "owner/name"}


def test_names_may_have_letters_of_any_script(tmp_path, folders):
    assert named_folders([f"情感分类={folders['tag']}"]) == {"情感分类": str(folders["tag"])}
    decomposed = tmp_path / "cafe\u0301"  # as some systems spell the names of files
    shutil.copytree(folders["tag"], decomposed)
    assert list(named_folders([str(decomposed)])) == ["caf\u00e9"]
    for name in ("_a", "a/b", "猫 狗", "-a", "猫" * 65):
        with pytest.raises(InputError, match="cannot be the name of a model"):
            named_folders([f"{name}={folders['tag']}"])


def test_prompts_and_dimensions_are_read_once(tmp_path, folders, one_thread):
    folder = tmp_path / "matryoshka"
    shutil.copytree(folders["sentences"], folder)
    settings = {"prompts": {"query": "who is "}, "truncate_dim": 8}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    served = load_served_model("matryoshka", folder, lambda: None)
    shutil.rmtree(folder)
    assert (served.prompts, served.dimensions) == ({"query": "who is "}, (8,))
    fields = served.to_dict()
    assert (fields["id"], fields["object"], fields["created"]) == ("matryoshka", "model", 1_700_000_000)
    assert fields["dimensions"] == [8]


def test_invalid_and_duplicate_names_are_rejected(folders):
    with pytest.raises(InputError, match="NAME=FOLDER"):
        named_folders([f"a b={folders['tag']}"])
    with pytest.raises(SettingsError, match="two models have the name 'same'"):
        named_folders([f"same={folders['tag']}", f"same={folders['answer']}"])


def test_serving_imports_neither_training_nor_commands():
    code = (
        "import sys, bertworks.serving.server, bertworks.serving.bundle; "
        "print([m for m in sys.modules if m.startswith(('bertworks.training', 'bertworks.commands'))])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
