"""Exported models without PyTorch: predictions, vectors and HTTP answers are those of the same models with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_models import TASK_INPUTS, assert_close, finetuned, pretrained, sentence_model

import bertworks
from bertworks.api import export

# The packages that an installation of bertworks-run does not have. A finder before all others refuses them.
HEAVY = ("torch", "sklearn", "scipy", "transformers", "seqeval", "ftfy", "onnx", "pyarrow")
SCRIPT = f"""
import asyncio, json, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Refusal())
import httpx
import bertworks
from bertworks.errors import BertworksError
from bertworks.serving.server import ServeRequest, load_app

request = json.loads(sys.stdin.read())
answers = {{}}
app = load_app(ServeRequest(models=tuple(f"{{name}}={{folder}}" for name, folder in request["folders"].items())))
app.service.state.is_ready = True

async def send(path, body):
    transport = httpx.ASGITransport(app.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

for name, folder in request["folders"].items():
    model = bertworks.load(folder)
    if name in request["inputs"]:
        inputs = request["inputs"][name]
        answers[name] = [prediction.to_dict() for prediction in model.predict(inputs)]
        body = {{"inputs": inputs[:1]}}
        answers[f"{{name}} over HTTP"] = asyncio.run(send(f"/v1/models/{{name}}/predict", body))["predictions"]
    else:
        answers[name] = model.encode(request["texts"]).tolist()
        body = {{"model": name, "input": request["texts"]}}
        data = asyncio.run(send("/v1/embeddings", body))["data"]
        answers[f"{{name}} over HTTP"] = [row["embedding"] for row in data]
filled = bertworks.load(request["folders"]["pretrained"]).fill_mask(request["masked"])
answers["fill_mask"] = [candidate.token for candidate in filled.mask_candidates[0]]
try:
    bertworks.load(request["weights"])
except BertworksError as error:
    answers["error"] = str(error)
app.close()
print(json.dumps(answers))
"""
TEXTS = ["the film was good", "john lives in paris . " * 12, "我喜欢足球。"]
MASKED = "the film was [MASK] ."


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The ONNX folders of a model for each task, a pretrained one and one for sentence vectors."""
    folder = tmp_path_factory.mktemp("exported")
    originals = {name: finetuned(folder / f"{name}-weights", each.task) for name, each in TASK_INPUTS.items()}
    originals["pretrained"] = pretrained(folder / "pretrained-weights")
    originals["sentences"] = sentence_model(folder / "sentences-weights")
    for name, original in originals.items():
        export(original, "onnx", folder / name)
    return {name: folder / name for name in originals}


def inputs_of(name: str) -> list[Any]:
    """Return the inputs of a task as JSON has them, of one kind: no pair beside single texts."""
    return [text for text in TASK_INPUTS[name].texts if not isinstance(text, tuple)]


@pytest.fixture(scope="module")
def answers(exported: dict[str, Path]) -> dict[str, Any]:
    """What a process without these packages answers."""
    request = {
        "folders": {name: str(folder) for name, folder in exported.items()},
        "inputs": {name: inputs_of(name) for name in TASK_INPUTS},
        "texts": TEXTS,
        "masked": MASKED,
        "weights": str(exported["classify"]) + "-weights",
    }
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(bertworks.__file__).parents[1])},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("name", TASK_INPUTS)
def test_predictions_are_those_of_the_original_weights_in_torch(
    exported: dict[str, Path], answers: dict[str, Any], name: str
):
    original = bertworks.load(f"{exported[name]}-weights", engine="torch", precision="fp32")
    expected = [prediction.to_dict() for prediction in original.predict(inputs_of(name))]
    assert_close(expected, answers[name])
    assert_close(expected[:1], answers[f"{name} over HTTP"])


@pytest.mark.parametrize("name", ["pretrained", "sentences"])
def test_vectors_are_those_of_the_original_weights_in_torch(
    exported: dict[str, Path], answers: dict[str, Any], name: str
):
    original = bertworks.load(f"{exported[name]}-weights", engine="torch", precision="fp32")
    expected = original.encode(TEXTS)
    np.testing.assert_allclose(answers[name], expected, atol=1e-5)
    np.testing.assert_allclose(answers[f"{name} over HTTP"], expected, atol=1e-5)


def test_masks_are_filled_as_in_torch(exported: dict[str, Path], answers: dict[str, Any]):
    original = bertworks.load(f"{exported['pretrained']}-weights", engine="torch", precision="fp32")
    candidates = original.fill_mask(MASKED).mask_candidates[0]
    assert answers["fill_mask"] == [candidate.token for candidate in candidates]


def test_a_folder_with_weights_names_the_package_that_is_missing(answers: dict[str, Any]):
    assert (
        "a model that is not exported, needs the package 'torch'; install it with: pip install bertworks"
        in (answers["error"])
    )


def test_nothing_heavy_is_loaded(exported: dict[str, Path]):
    """In an environment that has them: neither the commands nor a prediction import them."""
    code = (
        "import sys, bertworks, bertworks.cli.predict, bertworks.cli.embed, bertworks.cli.serve\n"
        "import bertworks.commands.predict, bertworks.commands.embed, bertworks.serving.server\n"
        f"bertworks.load({str(exported['classify'])!r}).predict(['the film was good'])\n"
        f"print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bertworks.__file__).parents[1])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert process.stdout.strip() == "[]"
