"""GPT as it was published: a vocabulary without special pieces is taken as it is; likeness is read in both orders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from family_models import drawn
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.datasets.labelled_texts import TextExample
from bertworks.errors import SettingsError
from bertworks.inference.attribution import explain
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.model import load
from bertworks.sampling.batch import Batch
from bertworks.sampling.windows import WindowRule

pytestmark = pytest.mark.usefixtures("one_thread")
LETTERS = "abcdefghijklmnoprstuvwy"
VOCABULARY = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "th", "the</w>", ".</w>"]
TUNING = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=2, dropout=0.0, max_restarts=0, pair_order="both")
PAIRS = [("the river", "a road"), ("stone", "the stone"), ("winter", "bread"), ("a garden", "the garden")]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub has openai-gpt: BPE with <unk> and no other special piece."""
    folder = tmp_path_factory.mktemp("released")
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    merges = [("t", "h"), ("th", "e</w>")]
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    config = transformers.OpenAIGPTConfig(vocab_size=len(ids), n_positions=32, n_embd=16, n_layer=2, n_head=2)
    drawn(transformers.OpenAIGPTLMHeadModel(config)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labelled") / "pairs.tsv"
    lines = [f"{one}\t{other}\t{number}" for number, (one, other) in enumerate(PAIRS)]
    path.write_text("\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(released: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "run"
    list(finetune(FinetuneRequest("regress", str(released), labelled, out, recipe=TUNING)))
    return out / "model"


def test_the_special_pieces_stand_behind_the_last_and_begin_in_the_middle(released: Path):
    model = load(released)
    size = len(VOCABULARY)
    assert model.tokenizer.tokens[size:] == ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
    assert model.tokenizer.encode("the.").tokens == ("[CLS]", "the</w>", ".</w>", "[SEP]")
    table = model.encoder.token_embeddings.weight
    assert table.shape[0] == size + 4
    torch.testing.assert_close(table[size:], table[:size].mean(0).expand(4, -1))


def test_what_was_there_reads_as_before(released: Path):
    model = load(released)
    peer = transformers.OpenAIGPTModel.from_pretrained(released).eval()
    ids = torch.tensor([model.tokenizer.tokenize("the river.").input_ids.tolist()])
    with torch.no_grad():
        wanted = peer(ids).last_hidden_state[0]
        found = model.encoder.forward_layers(
            model.encoder.token_embeddings(ids[0]) + model.encoder.positions.weight[: ids.shape[1]],
            model.encoder.create_layout(Batch(ids, torch.zeros_like(ids), torch.tensor([ids.shape[1]]))),
        ).last_hidden_state
    assert (found - wanted).abs().max() < 1e-5
    assert model.generate("the").continuation


def test_a_tuned_release_is_a_folder_of_transformers_with_four_pieces_more(tuned: Path):
    peer = transformers.OpenAIGPTForSequenceClassification.from_pretrained(tuned).eval()
    assert peer.config.vocab_size == len(VOCABULARY) + 4
    assert peer.config.pad_token_id == len(VOCABULARY)
    assert load(tuned).predict([PAIRS[0]])


def test_likeness_has_no_order(tuned: Path, released: Path, labelled: Path, tmp_path: Path):
    assert json.loads((tuned / "bertworks.json").read_text())["window"]["orders"] == "both"
    model = load(tuned)
    one, other = (model.predict([pair])[0].value for pair in (PAIRS[0], PAIRS[0][::-1]))
    assert one == pytest.approx(other, abs=1e-6)
    # The mean of what transformers says of the two orders, and of the labels.
    peer = transformers.OpenAIGPTForSequenceClassification.from_pretrained(tuned).eval()
    with torch.no_grad():
        said = [
            float(peer(torch.tensor([model.tokenizer.encode(*pair).input_ids])).logits)
            for pair in (PAIRS[0], PAIRS[0][::-1])
        ]
    assert one == pytest.approx(np.mean(said) + model.predictor.module.task.mean, abs=1e-5)
    assert abs(said[0] - said[1]) > 1e-4


def test_a_pair_is_two_rows_whose_runs_name_the_texts_in_their_order(tuned: Path):
    predictor = load_predictor(tuned)
    case = TextExample("1", "here", ("the river", "a road"))
    first, second = predictor.module.task.featurize(case, predictor.tokenizer, predictor.window_rule).sequences
    assert sorted(first.window.input_ids.tolist()) == sorted(second.window.input_ids.tolist())
    assert first.window.spans[0].position < first.window.spans[1].position
    assert second.window.spans[0].position > second.window.spans[1].position
    for row in (first, second):
        for run, text in zip(row.window.spans, case.texts, strict=True):
            own = row.window.input_ids[run.position : run.position + run.count]
            assert own.tolist() == predictor.tokenizer.tokenize(text).input_ids.tolist()
    told = explain(predictor, case)
    gap = told.output - told.baseline_output - sum(text.weights.sum() for text in told.texts)
    assert abs(gap) < 0.02 * sum(np.abs(text.weights).sum() for text in told.texts) + 1e-6


def test_two_orders_are_refused_where_there_are_none(released: Path, tmp_path: Path):
    (tmp_path / "texts.tsv").write_text("text\tlabel\nthe river\tyes\na road\tno\n")
    request = FinetuneRequest("classify", str(released), tmp_path / "texts.tsv", tmp_path / "run", recipe=TUNING)
    with pytest.raises(SettingsError, match="orders = both is for pairs"):
        list(finetune(request))
    with pytest.raises(SettingsError, match="choose one of: given, both"):
        WindowRule(pair_order="none")
