"""RoBERTa, ALBERT, GPT and XLNet through `finetune`, `predict`, `embed`: sealed folders are transformers' own."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from family_models import MEMBERS, Member, drawn
from small_run import WORDS

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.commands.predict import PredictRequest, predict
from bertworks.encoders.families import architecture_of, family_of
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.model import load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.sampling.batch import Batch
from bertworks.tasks.contract import InputSequence
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
TUNING = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=1, dropout=0.0, max_restarts=0)
TASKS = ("classify", "regress", "choose", "tag", "answer")
TUNED = {**MEMBERS, "xlnet": Member("xlnet", "unigram", 40, "permuted")}
PLACES = ("river", "garden", "road")


@pytest.fixture(scope="module", params=list(TUNED))
def member(request: pytest.FixtureRequest) -> Member:
    return TUNED[str(request.param)]


@pytest.fixture(scope="module")
def base(member: Member, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model, as far as anybody can tell: two layers, every weight drawn at random."""
    folder = tmp_path_factory.mktemp(member.family) / "model"
    lines = [" ".join(random.Random(number).choices([*WORDS, "the", "where", "is"], k=8)) + "." for number in range(99)]
    tokenizer = Tokenizer.from_backend(train(lines, VocabularySettings(kind=member.kind, vocab_size=member.size)))
    family = family_of(member.family)
    sizes = replace(
        family.config_from_preset("tiny", tokenizer.vocab_size),
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    encoder = drawn(family.build(sizes, None))
    config = family.config_to_dict(sizes, [architecture_of(sizes)])
    write_folder(folder, config, to_hf_names(encoder.state_dict(), family.tensor_names(sizes)), tokenizer, {})
    return folder


def texts(count: int) -> list[str]:
    draw = random.Random(count)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 6))) for _ in range(count)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sixteen labelled examples of each task."""
    folder = tmp_path_factory.mktemp("labelled")
    some = texts(16)
    is_place = [any(place in text for place in PLACES) for text in some]
    lines: dict[str, list[str]] = {
        "classify.tsv": ["text\tlabel", *(f"{text}\t{label}" for text, label in zip(some, is_place, strict=True))],
        "regress.tsv": ["sentence1\tsentence2\tlabel", *(f"{text}\tthe {text}\t{len(text) / 9}" for text in some)],
        "choose.jsonl": [
            json.dumps({"prompt": text, "choices": ["the stone", "the silver bread"], "label": len(text) % 2})
            for text in some
        ],
        "tag.conll": [
            line
            for text in some
            for line in (*(f"{word} {'B-LOC' if word in PLACES else 'O'}" for word in text.split()), "")
        ],
        "answer.jsonl": [
            json.dumps(
                {"id": str(at), "question": "where is the stone", "context": text,
                 "answers": [{"text": text.split()[1], "answer_start": text.index(" ") + 1}]}
            )
            for at, text in enumerate(some)
        ],
    }  # fmt: skip
    for name, own in lines.items():
        (folder / name).write_text("\n".join(own) + "\n", encoding="utf-8")
    return {name.split(".")[0]: folder / name for name in lines}


def theirs_of(peer: Any, rows: list[InputSequence], task: str, family: str) -> np.ndarray:
    """What transformers says of the first row, or of all rows of a choice."""
    width = max(len(row.window) for row in rows)
    ids = torch.full((len(rows), width), peer.config.pad_token_id)
    real, kinds = torch.zeros_like(ids), torch.zeros_like(ids)
    for at, row in enumerate(rows):
        length = len(row.window)
        own = slice(0, length) if family_of(family).padding_side == "right" else slice(width - length, width)
        ids[at, own] = torch.from_numpy(row.window.input_ids)
        kinds[at, own] = torch.from_numpy(row.window.token_type_ids)
        real[at, own] = 1
    given = {"input_ids": ids, "attention_mask": real}
    if family in ("albert", "xlnet"):
        given["token_type_ids"] = kinds
    if task == "choose":
        given = {name: values[None] for name, values in given.items()}
    with torch.no_grad():
        found = peer(**given)
    if task == "answer":
        return torch.stack([found.start_logits, found.end_logits], -1)[0].numpy()
    if task == "tag":
        return found.logits[0, rows[0].positions].numpy()
    return found.logits[0].numpy()


@pytest.mark.parametrize("task", TASKS)
def test_a_member_learns_a_task_and_its_folder_says_the_same_in_transformers(
    member: Member, base: Path, files: dict[str, Path], task: str, tmp_path: Path
):
    request = FinetuneRequest(task, str(base), files[task], tmp_path / "run", recipe=TUNING)
    assert list(finetune(request))[-1].model_folder == tmp_path / "run" / "model"
    folder = tmp_path / "run" / "model"
    predictor = load_predictor(folder)
    case = next(iter(predictor.module.task.read(files[task], {})))
    question = predictor.module.task.featurize(case, predictor.tokenizer, predictor.window_rule)
    found = predictor.outputs([question])[0]
    ours = np.concatenate(found) if task == "choose" else found[0]
    own = getattr(transformers, architecture_of(predictor.module.encoder.config, predictor.module.task.head_kind), None)
    if own is None:  # then the encoder is theirs, and the head is under a name of ours
        assert member.family == "openai-gpt"
        assert load(folder).report.unexpected_keys == ()
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["OpenAIGPTModel"]
        return
    peer, told = own.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    said = theirs_of(peer.eval(), list(question.sequences), task, member.family)
    if task == "regress" and member.family == "openai-gpt":
        assert peer.score.bias is None
        assert predictor.module.task.mean != 0  # which has no place in a head without a bias
    assert np.abs(ours - said).max() < CLOSE


def test_a_classifier_of_transformers_loads_in_ours_with_the_same_logits(member: Member, base: Path, tmp_path: Path):
    config = transformers.AutoConfig.from_pretrained(base, num_labels=3)
    kind = getattr(transformers, family_of(member.family).class_prefix + "ForSequenceClassification")
    peer = drawn(kind(config))
    peer.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    text = "the river and the stone"
    with torch.no_grad():
        said = peer(torch.tensor([ours.tokenizer.encode(text).input_ids])).logits[0].numpy()
    assert np.abs(ours.predict([text])[0].logits - said).max() < CLOSE


@pytest.mark.parametrize("task", ["classify", "tag"])  # which do and do not ask for a summary
def test_stopped_and_continued_it_is_the_same_to_the_bit(base: Path, files: dict[str, Path], task: str, tmp_path: Path):
    request = FinetuneRequest(task, str(base), files[task], tmp_path / "whole", recipe=TUNING)
    list(finetune(request))
    list(finetune(replace(request, output=tmp_path / "parts", stop_after=2)))
    list(finetune(replace(request, output=tmp_path / "parts")))
    one, other = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "parts"))
    assert one.read_bytes() == other.read_bytes()


def test_next_pieces_are_learned_beside_the_task_where_a_model_reads_to_the_left(
    member: Member, base: Path, files: dict[str, Path], tmp_path: Path
):
    tuning = replace(TUNING, lm_weight=0.5, epochs=4)
    request = FinetuneRequest("classify", str(base), files["classify"], tmp_path / "run", recipe=tuning)
    if member.family != "openai-gpt":
        with pytest.raises(SettingsError, match="for a model that reads to the left; ask for masked"):
            list(finetune(request))
        return
    losses = [told.step.losses for told in finetune(request) if told.step]
    assert set(losses[0]) == {"task", "next"}
    assert sum(one["next"] for one in losses[-3:]) < sum(one["next"] for one in losses[:3])
    with pytest.raises(SettingsError, match="fills no blanks; ask for next pieces"):
        list(finetune(replace(request, output=tmp_path / "other", recipe=replace(TUNING, mlm_weight=0.1))))


def test_predictions_and_vectors_come_through_the_usual_verbs(base: Path, files: dict[str, Path], tmp_path: Path):
    request = FinetuneRequest("classify", str(base), files["classify"], tmp_path / "run", recipe=TUNING)
    list(finetune(request))
    (tmp_path / "texts.txt").write_text("the river\nwinter bread\n")
    found = list(predict(PredictRequest(str(tmp_path / "run" / "model"), tmp_path / "texts.txt", "text")))
    assert [one["label"] in ("True", "False") for one in found] == [True, True]
    vectors = load(base).encode(["the river", "winter bread"])
    assert vectors.shape == (2, 16)
    assert np.isfinite(vectors).all()


def test_a_graph_says_the_same(base: Path):
    ours, graph = load(base).encode(["the river"]), load(base, engine="onnx").encode(["the river"])
    assert np.abs(ours - graph).max() < 1e-4


def test_the_summary_of_a_row_is_that_of_the_last_piece_where_a_member_sums_it_up_so(base: Path, member: Member):
    model = load(base)
    ids = torch.tensor([model.tokenizer.encode("the river").input_ids])
    with torch.no_grad():
        encoded = model.encoder(Batch(ids, torch.zeros_like(ids), torch.tensor([ids.shape[1]])))
        summing = encoded.last_hidden_state[-1 if member.family in ("openai-gpt", "xlnet") else 0]
        expected = summing if member.family == "openai-gpt" else torch.tanh(model.encoder.pooler(summing))
    assert torch.equal(encoded.pooled[0], expected)
