"""The released GPT: a vocabulary without special tokens gets four; symmetric pairs are read in both orders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from family_models import randomize_weights
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from bertworks.commands.finetune.build import build_encoder
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import SettingsError
from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.attribution import explain
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.model import load
from bertworks.models.folder import read_folder
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule

pytestmark = pytest.mark.usefixtures("one_thread")
LETTERS = "abcdefghijklmnoprstuvwy"
VOCABULARY = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "th", "the</w>", ".</w>"]
RECIPE = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=2, dropout=0.0, max_restarts=0, pair_order="both")
PAIRS = [("the river", "a road"), ("stone", "the stone"), ("winter", "bread"), ("a garden", "the garden")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like openai-gpt on the hub: BPE with <unk> and no other special token."""
    folder = tmp_path_factory.mktemp("released")
    vocab = {token: index for index, token in enumerate(VOCABULARY)}
    merges = [("t", "h"), ("th", "e</w>")]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    config = transformers.OpenAIGPTConfig(vocab_size=len(vocab), n_positions=32, n_embd=16, n_layer=2, n_head=2)
    randomize_weights(transformers.OpenAIGPTLMHeadModel(config)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled") / "pairs.tsv"
    lines = [f"{first}\t{second}\t{label}" for label, (first, second) in enumerate(PAIRS)]
    path.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finetuned(released: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finetuned") / "run"
    list(
        run_finetune(FinetuneRequest(task="regress", model=str(released), train=labelled, output=output, recipe=RECIPE))
    )
    return output / "model"


def test_special_tokens_are_appended_with_the_mean_embedding(released: Path):
    model = load(released)
    size = len(VOCABULARY)
    assert model.tokenizer.tokens[size:] == ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    assert model.tokenizer.encode("the.").tokens == ("[CLS]", "the</w>", ".</w>", "[SEP]")
    table = model.encoder.token_embeddings.weight
    assert table.shape[0] == size + 4
    torch.testing.assert_close(table[size:], table[:size].mean(0).expand(4, -1))


def test_the_encoder_equals_transformers(released: Path):
    model = load(released)
    hf_model = transformers.OpenAIGPTModel.from_pretrained(released).eval()
    vocab = torch.tensor([model.tokenizer.tokenize("the river.").input_ids.tolist()])
    with torch.no_grad():
        wanted = hf_model(vocab).last_hidden_state[0]
        found = model.encoder.forward_layers(
            model.encoder.token_embeddings(vocab[0]) + model.encoder.position_embeddings.weight[: vocab.shape[1]],
            model.encoder.create_layout(
                Batch(input_ids=vocab, token_type_ids=torch.zeros_like(vocab), lengths=torch.tensor([vocab.shape[1]]))
            ),
        ).last_hidden_state
    assert (found - wanted).abs().max() < 1e-5
    assert model.generate("the").continuation


def test_the_fine_tuned_folder_loads_in_transformers_with_four_more_tokens(finetuned: Path):
    hf_model = transformers.OpenAIGPTForSequenceClassification.from_pretrained(finetuned).eval()
    assert hf_model.config.vocab_size == len(VOCABULARY) + 4
    assert hf_model.config.pad_token_id == len(VOCABULARY)
    assert load(finetuned).predict([PAIRS[0]])


def test_a_model_that_is_trained_pads_and_pools_by_its_vocabulary_whatever_its_folder_stated(released: Path):
    base = read_folder(released)
    base = replace(base, config={**base.config, "pad_token_id": VOCABULARY.index("<unk>")})
    encoder = build_encoder(base, torch.Generator().manual_seed(0))
    assert encoder.config.pad_token_id == base.tokenizer.specials.pad == len(VOCABULARY)
    input_ids = torch.tensor([[1, 2, VOCABULARY.index("<unk>")]])
    batch = Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([3]))
    assert encoder.pooled_positions(encoder.create_layout(batch)).tolist() == [2]


def test_the_prediction_of_a_symmetric_pair_does_not_depend_on_the_order(
    finetuned: Path, released: Path, labelled: Path, tmp_path: Path
):
    assert json.loads((finetuned / "bertworks.json").read_text())["window"]["pair_order"] == "both"
    model = load(finetuned)
    value, swapped = (model.predict([pair])[0].value for pair in (PAIRS[0], PAIRS[0][::-1]))
    assert value == pytest.approx(swapped, abs=1e-6)
    # The mean of transformers' outputs for both orders, plus the mean of the labels.
    hf_model = transformers.OpenAIGPTForSequenceClassification.from_pretrained(finetuned).eval()
    with torch.no_grad():
        logits = [
            float(hf_model(torch.tensor([model.tokenizer.encode(*pair).input_ids])).logits)
            for pair in (PAIRS[0], PAIRS[0][::-1])
        ]
    assert value == pytest.approx(np.mean(logits) + model.predictor.module.task.mean, abs=1e-5)
    assert abs(logits[0] - logits[1]) > 1e-4


def test_a_pair_has_two_sequences_with_spans_in_the_order_of_the_texts(finetuned: Path):
    predictor = load_predictor(finetuned)
    example = TextExample("1", "here", ("the river", "a road"))
    first, second = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule).sequences
    assert sorted(first.input_ids.tolist()) == sorted(second.input_ids.tolist())
    assert first.spans[0].position < first.spans[1].position
    assert second.spans[0].position > second.spans[1].position
    for sequence in (first, second):
        for span, text in zip(sequence.spans, example.texts, strict=True):
            token_ids = sequence.input_ids[span.position : span.position + span.count]
            assert token_ids.tolist() == predictor.tokenizer.tokenize(text).input_ids.tolist()
    explanation = explain(predictor, example)
    delta = explanation.output - explanation.baseline_output - sum(text.weights.sum() for text in explanation.texts)
    assert abs(delta) < 0.02 * sum(np.abs(text.weights).sum() for text in explanation.texts) + 1e-6


def test_a_classifier_of_transformers_is_exported_without_special_tokens_too(released: Path, tmp_path: Path):
    config = transformers.AutoConfig.from_pretrained(released, num_labels=3)
    hf_model = randomize_weights(transformers.OpenAIGPTForSequenceClassification(config))
    hf_model.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_bytes((released / "tokenizer.json").read_bytes())
    export(ExportRequest(model=str(tmp_path / "hf"), target="onnx", output=tmp_path / "onnx"))
    model = load(tmp_path / "onnx")
    with torch.no_grad():
        logits = hf_model(torch.tensor([model.tokenizer.tokenize("the river").input_ids.tolist()])).logits[0]
    assert np.abs(model.predict(["the river"])[0].logits - logits.numpy()).max() < 1e-4


def test_both_orders_of_single_texts_are_refused(released: Path, tmp_path: Path):
    (tmp_path / "texts.tsv").write_text("text\tlabel\nthe river\tyes\na road\tno\n")
    request = FinetuneRequest(
        task="classify", model=str(released), train=tmp_path / "texts.tsv", output=tmp_path / "run", recipe=RECIPE
    )
    with pytest.raises(SettingsError, match="pair_order = both needs text pairs"):
        list(run_finetune(request))
    with pytest.raises(SettingsError, match="choose one of: given, both"):
        WindowRule(pair_order="none")
