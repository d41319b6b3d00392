"""Fine-tuning a sentence-transformers model: its pooling, normalization, prompt and maximum length are kept."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from small_models import write_pretrained

import bertworks
from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.embeddings.pooling import read_pooling

pytestmark = pytest.mark.usefixtures("one_thread")
RECIPE = FinetuneRecipe(
    batch_size=4,
    learning_rate=1e-3,
    epochs=1,
    max_restarts=0,
    baselines=False,
    adapt=AdaptSettings(epochs=1, learning_rate=1e-3, batch_size=4),
)
TEXTS = ["the cat sat on the mat", "good", "it was a very good film and the dog was not bad or dull in paris"]


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A sentence-transformers model, and the folder that was fine-tuned from it."""
    folder = tmp_path_factory.mktemp("sentences")
    write_pretrained(folder / "encoder")
    modules = [Transformer(str(folder / "encoder"), max_seq_length=16), Pooling(24, pooling_mode="cls"), Normalize()]
    prompts = {"query": "who is it? "}
    peer = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="query")
    base = folder / "base"
    peer.save(str(base))
    train = folder / "train.tsv"
    train.write_text("text\tlabel\ngood film\tgood\nbad film\tbad\nvery good\tgood\nvery dull\tbad\n")
    request = FinetuneRequest(task="classify", model=str(base), train=train, output=folder / "run", recipe=RECIPE)
    list(run_finetune(request))
    return base, folder / "run" / "model"


def test_an_adapted_folder_keeps_it_too(finetuned: tuple[Path, Path]):
    base, folder = finetuned
    assert read_pooling(folder.parent / "adapt" / "model") == read_pooling(base)


def test_the_fine_tuned_folder_keeps_the_pooling(finetuned: tuple[Path, Path]):
    base, folder = finetuned
    assert read_pooling(folder) == read_pooling(base)
    assert read_pooling(folder).kinds == ("cls",)
    assert (read_pooling(folder).prompt, read_pooling(folder).max_length) == ("who is it? ", 16)
    files = json.loads((folder / "bertworks.json").read_text())["files"]
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= files.keys()


def test_it_predicts_and_has_the_vectors_of_sentence_transformers(finetuned: tuple[Path, Path]):
    _, folder = finetuned
    model = bertworks.load(folder)
    assert {prediction.label for prediction in model.predict(TEXTS)} <= {"good", "bad"}
    peer = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS, truncate=True), peer.encode(TEXTS), atol=1e-5)
