"""The models of the checkout, en-small and zh-small: packages that are there, load by name and equal transformers."""

from pathlib import Path

import numpy as np
import pytest

import bertworks
from bertworks.packages import MODELS, packaged_model

ROOT = Path(__file__).parents[1]
MAX_BYTES = 30_000_000
TEXTS = {
    "en-small": ["She opened the door and looked out of the window.", "Win a free phone"],
    "zh-small": ["酒店的服务很好，下次还会来。", "房间很干净"],
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory without a folder that has the name of a model."""
    monkeypatch.chdir(tmp_path)


def folder_of(name: str) -> Path:
    return ROOT / "models" / name / f"bertworks_{name.replace('-', '_')}" / "model"


def test_every_model_of_ours_has_texts_here():
    assert sorted(TEXTS) == sorted(MODELS)


@pytest.mark.parametrize("name", TEXTS)
def test_the_package_is_in_the_checkout_with_its_card(name):
    files = {path.relative_to(ROOT / "models" / name).as_posix() for path in (ROOT / "models" / name).rglob("*")}
    assert {"README.md", "pyproject.toml", folder_of(name).parent.name + "/__init__.py"} <= files
    assert packaged_model(name) == folder_of(name)


@pytest.mark.parametrize("name", TEXTS)
def test_the_weights_have_at_most_30_megabytes(name):
    assert 0 < (folder_of(name) / "model.safetensors").stat().st_size <= MAX_BYTES


@pytest.mark.parametrize("name", TEXTS)
def test_the_model_loads_by_its_name_and_encodes(name, one_thread):
    model = bertworks.load(name)
    assert model.folder == folder_of(name)
    assert model.encode(TEXTS[name]).shape == (2, 256)


@pytest.mark.parametrize("name", TEXTS)
def test_the_vocabulary_reads_every_word_of_its_language(name):
    model = bertworks.load(name)
    assert [token for text in TEXTS[name] for token in model.tokenize(text).tokens if token == "[UNK]"] == []


@pytest.mark.parametrize("name", TEXTS)
def test_transformers_loads_the_folder_as_it_is_with_the_same_logits(name, one_thread):
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder_of(name))
    theirs = AutoModelForMaskedLM.from_pretrained(folder_of(name), dtype=torch.float32).eval()
    ours = bertworks.load(name, precision="fp32")
    assert ours.mask_filler is not None
    for text in TEXTS[name]:
        encoding, features = ours.tokenize(text), tokenizer(text, return_tensors="pt")
        assert features["input_ids"][0].tolist() == list(encoding.input_ids)
        with torch.inference_mode():
            expected = theirs(**features).logits[0].numpy()
        logits = ours.mask_filler.logits([encoding], [np.arange(len(encoding))])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "filled"),
    [
        ("en-small", "I have never [MASK] this film before.", "I have never seen this film before."),
        ("zh-small", "酒店的服务很[MASK]，下次还会来。", "酒店的服务很好，下次还会来。"),
    ],
)
def test_a_mask_is_filled_with_the_common_word(name, text, filled, one_thread):
    assert bertworks.load(name).fill_mask(text).sequences[0].text == filled
