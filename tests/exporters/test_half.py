"""fp16 weights: the rounding error by hand, refusals, and parity with transformers, which loads them as fp32."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from damage import forget_hashes
from exported_models import pretrained
from safetensors.torch import load_file, save_file

from bertworks.errors import FolderError
from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.model import load
from bertworks.sampling.batch import collate_sequences

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "john lives in paris . 我喜欢足球。"
# Texts of one segment do not use the embedding of token type 1.
UNUSED = "bert.embeddings.token_type_embeddings.weight"


def with_value(folder: Path, value: float) -> Path:
    """Return a pretrained model with a value that no output of a single text depends on."""
    pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[UNUSED][1, 5] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return forget_hashes(folder)


def to_half(model: Path, output: Path) -> Path:
    return export(ExportRequest(model=str(model), target="safetensors-fp16", output=output)).output


def test_the_largest_rounding_error_is_reported(tmp_path: Path):
    """Between 16 and 32, fp16 has steps of 2^-6: 16 + 2^-8 is rounded to 16."""
    output = to_half(with_value(tmp_path / "model", 16 + 2**-8), tmp_path / "out")
    assert json.loads((output / "certificate.json").read_text())["scheme"]["max_rounding_error"] == 2**-8
    assert load_file(output / "model.safetensors")[UNUSED][1, 5] == 16


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "has values that are not finite; export an earlier checkpoint"),
        (70_000.0, r"has the value 7e\+04, and fp16 has none above 65,504; keep this model in fp32"),
    ],
)
def test_weights_that_fp16_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path, value: float, message: str):
    model = with_value(tmp_path / "model", value)
    with pytest.raises(FolderError, match=rf"model: tensor '{UNUSED}' {message}"):
        to_half(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_in_fp16_stays_the_same(tmp_path: Path):
    first = to_half(pretrained(tmp_path / "model"), tmp_path / "first")
    second = to_half(first, tmp_path / "second")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()


@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForMaskedLM"])
def test_transformers_computes_the_same_hidden_states(tmp_path: Path, kind: str):
    folder = to_half(pretrained(tmp_path / "model"), tmp_path / "out")
    assert {values.dtype for values in load_file(folder / "model.safetensors").values()} == {torch.float16}
    model = load(folder, precision="fp32")
    peer = getattr(transformers, kind).from_pretrained(folder).eval()
    assert {parameter.dtype for parameter in peer.parameters()} == {torch.float32}
    encoding = model.tokenizer.encode(TEXT)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    assert inputs["input_ids"].tolist() == [list(encoding.input_ids)]
    with torch.inference_mode():
        expected = peer(**inputs, output_hidden_states=True)
        actual = model.encoder(collate_sequences([encoding], model.tokenizer.specials.pad))
        for ours, theirs in zip(actual.hidden_states, expected.hidden_states, strict=True):
            np.testing.assert_allclose(ours.view_as(theirs), theirs, atol=1e-5)
        if kind == "AutoModelForMaskedLM":
            assert model.mlm_head is not None
            logits = model.mlm_head(actual.to_padded()[0], model.encoder.token_embeddings.weight)
            np.testing.assert_allclose(logits, expected.logits[0], atol=1e-4)
