"""Every family through `finetune`, `predict` and `encode`: folders equal transformers."""

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
from family_models import MEMBERS, Member, randomize_weights
from small_run import WORDS

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.predict import PredictRequest, predict
from bertworks.encoders.families import architecture_of, family_of
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.model import load
from bertworks.models.folder import read_folder, write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.sampling.batch import Batch
from bertworks.tasks.contract import InputSequence
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
RECIPE = FinetuneRecipe(batch_size=4, learning_rate=1e-2, epochs=1, dropout=0.0, max_restarts=0)
TASKS = ("classify", "regress", "choose", "tag", "answer")
FINETUNED_MEMBERS = {**MEMBERS, "xlnet": Member("xlnet", "unigram", 40, "permutation")}
LOCATIONS = ("river", "garden", "road")


@pytest.fixture(scope="module", params=list(FINETUNED_MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    return FINETUNED_MEMBERS[str(request.param)]


@pytest.fixture(scope="module")
def base(member: Member, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with random weights, in place of a pretrained one."""
    folder = tmp_path_factory.mktemp(member.family) / "model"
    lines = [" ".join(random.Random(number).choices([*WORDS, "the", "where", "is"], k=8)) + "." for number in range(99)]
    tokenizer = Tokenizer.from_backend(train(lines, VocabularySettings(kind=member.kind, vocab_size=member.vocab_size)))
    family = family_of(member.family)
    config = family.config_from_preset("tiny", tokenizer.vocab_size).resized(
        hidden_size=16, num_attention_heads=2, intermediate_size=64, max_length=64
    )
    config = config.with_pad_token_id(tokenizer.specials.pad)
    encoder = randomize_weights(family.build(config, None))
    config_dict = family.config_to_dict(config, [architecture_of(config)])
    write_folder(folder, config_dict, to_hf_names(encoder.state_dict(), family.tensor_names(config)), tokenizer, {})
    return folder


def texts(count: int) -> list[str]:
    rng = random.Random(count)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 6))) for _ in range(count)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sixteen labelled examples of each task."""
    folder = tmp_path_factory.mktemp("labelled")
    some = texts(16)
    has_location = [any(location in text for location in LOCATIONS) for text in some]
    lines: dict[str, list[str]] = {
        "classify.tsv": ["text\tlabel", *(f"{text}\t{label}" for text, label in zip(some, has_location, strict=True))],
        "regress.tsv": ["sentence1\tsentence2\tlabel", *(f"{text}\tthe {text}\t{len(text) / 9}" for text in some)],
        "choose.jsonl": [
            json.dumps({"prompt": text, "choices": ["the stone", "the silver bread"], "label": len(text) % 2})
            for text in some
        ],
        "tag.conll": [
            line
            for text in some
            for line in (*(f"{word} {'B-LOC' if word in LOCATIONS else 'O'}" for word in text.split()), "")
        ],
        "answer.jsonl": [
            json.dumps(
                {"id": str(index), "question": "where is the stone", "context": text,
                 "answers": [{"text": text.split()[1], "answer_start": text.index(" ") + 1}]}
            )
            for index, text in enumerate(some)
        ],
    }  # fmt: skip
    for name, file_lines in lines.items():
        (folder / name).write_text("\n".join(file_lines) + "\n", encoding="utf-8")
    return {name.split(".")[0]: folder / name for name in lines}


def transformers_outputs(hf_model: Any, sequences: list[InputSequence], task: str, family: str) -> np.ndarray:
    """The output of transformers for the first sequence, or for all sequences of a choice."""
    max_length = max(len(sequence) for sequence in sequences)
    input_ids = torch.full((len(sequences), max_length), hf_model.config.pad_token_id)
    attention_mask, token_type_ids = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    for index, sequence in enumerate(sequences):
        start = 0 if family_of(family).padding_side == "right" else max_length - len(sequence)
        span = slice(start, start + len(sequence))
        input_ids[index, span] = torch.from_numpy(sequence.input_ids)
        token_type_ids[index, span] = torch.from_numpy(sequence.token_type_ids)
        attention_mask[index, span] = 1
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if family_of(family).has_token_types:
        inputs["token_type_ids"] = token_type_ids
    if task == "choose":
        inputs = {name: values[None] for name, values in inputs.items()}
    with torch.no_grad():
        outputs = hf_model(**inputs)
    if task == "answer":
        return torch.stack([outputs.start_logits, outputs.end_logits], -1)[0].numpy()
    if task == "tag":
        return outputs.logits[0, sequences[0].positions].numpy()
    return outputs.logits[0].numpy()


@pytest.mark.parametrize("task", TASKS)
def test_a_fine_tuned_folder_has_the_same_outputs_in_transformers(
    member: Member, base: Path, files: dict[str, Path], task: str, tmp_path: Path
):
    request = FinetuneRequest(task=task, model=str(base), train=files[task], output=tmp_path / "run", recipe=RECIPE)
    folder = tmp_path / "run" / "model"
    assert list(run_finetune(request))[-1].model_folder == folder
    predictor = load_predictor(folder)
    example = next(iter(predictor.module.task.read(files[task], {})))
    features = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule)
    (outputs,) = predictor.outputs([features])
    ours = np.concatenate(outputs) if task == "choose" else outputs[0]
    architecture = architecture_of(predictor.module.encoder.config, predictor.module.task.head_kind)
    hf_class = getattr(transformers, architecture, None)
    if hf_class is None:  # transformers has only the encoder, and the head has our tensor names
        assert member.family == "openai-gpt"
        assert load(folder).report.unexpected_keys == ()
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["OpenAIGPTModel"]
        return
    hf_model, info = hf_class.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    theirs = transformers_outputs(hf_model.eval(), list(features.sequences), task, member.family)
    if task == "regress" and member.family == "openai-gpt":
        assert hf_model.score.bias is None
        assert predictor.module.task.mean != 0  # a head without a bias cannot hold it
    assert np.abs(ours - theirs).max() < CLOSE


def test_a_classifier_of_transformers_loads_with_the_same_logits(member: Member, base: Path, tmp_path: Path):
    config = transformers.AutoConfig.from_pretrained(base, num_labels=3)
    hf_class = getattr(transformers, family_of(member.family).class_prefix + "ForSequenceClassification")
    hf_model = randomize_weights(hf_class(config))
    hf_model.save_pretrained(tmp_path / "hf")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "hf")
    model = load(tmp_path / "hf")
    text = "the river and the stone"
    with torch.no_grad():
        logits = hf_model(torch.tensor([model.tokenizer.encode(text).input_ids])).logits[0].numpy()
    assert np.abs(model.predict([text])[0].logits - logits).max() < CLOSE


@pytest.mark.parametrize("task", ["classify", "tag"])  # with and without the pooled output
def test_a_resumed_run_is_bit_identical(base: Path, files: dict[str, Path], task: str, tmp_path: Path):
    request = FinetuneRequest(task=task, model=str(base), train=files[task], output=tmp_path / "whole", recipe=RECIPE)
    list(run_finetune(request))
    list(run_finetune(replace(request, output=tmp_path / "resumed", stop_after=2)))
    list(run_finetune(replace(request, output=tmp_path / "resumed")))
    whole, resumed = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "resumed"))
    assert whole.read_bytes() == resumed.read_bytes()


@pytest.mark.parametrize("task", TASKS)
def test_a_model_is_adapted_with_its_own_objective_and_resumes_bit_identically(
    member: Member, base: Path, files: dict[str, Path], task: str, tmp_path: Path
):
    recipe = replace(RECIPE, adapt=AdaptSettings(epochs=4, learning_rate=3e-2, batch_size=4))
    request = FinetuneRequest(task=task, model=str(base), train=files[task], output=tmp_path / "whole", recipe=recipe)
    events = [event for event in run_finetune(request) if event.step and event.phase == "adapt"]
    objective = {"openai-gpt": "causal", "xlnet": "permutation"}.get(member.family, "mlm")
    assert read_folder(tmp_path / "whole" / "adapt" / "model").metadata["objective"] == objective
    losses = [event.step.losses[objective] for event in events if event.step]
    assert sum(losses[-4:]) < sum(losses[:4])
    for stop_after in (6, None):
        list(run_finetune(replace(request, output=tmp_path / "resumed", stop_after=stop_after)))
    for folder in ("adapt/model", "model"):
        whole, resumed = (tmp_path / name / folder / "model.safetensors" for name in ("whole", "resumed"))
        assert whole.read_bytes() == resumed.read_bytes()


def test_an_auxiliary_causal_lm_loss_is_for_causal_models(
    member: Member, base: Path, files: dict[str, Path], tmp_path: Path
):
    recipe = replace(RECIPE, lm_weight=0.5, distill_weight=0.0, epochs=4)
    request = FinetuneRequest(
        task="classify", model=str(base), train=files["classify"], output=tmp_path / "run", recipe=recipe
    )
    if member.family != "openai-gpt":
        with pytest.raises(SettingsError, match="lm_weight needs a causal model"):
            list(run_finetune(request))
        return
    losses = [event.step.losses for event in run_finetune(request) if event.step]
    assert set(losses[0]) == {"task", "causal"}
    assert sum(loss["causal"] for loss in losses[-3:]) < sum(loss["causal"] for loss in losses[:3])
    with pytest.raises(SettingsError, match="have no masked-LM head; use lm_weight"):
        list(run_finetune(replace(request, output=tmp_path / "other", recipe=replace(RECIPE, mlm_weight=0.1))))


def test_a_fine_tuned_model_predicts_and_a_pretrained_one_encodes(base: Path, files: dict[str, Path], tmp_path: Path):
    request = FinetuneRequest(
        task="classify", model=str(base), train=files["classify"], output=tmp_path / "run", recipe=RECIPE
    )
    list(run_finetune(request))
    (tmp_path / "texts.txt").write_text("the river\nwinter bread\n")
    source = tmp_path / "texts.txt"
    predictions = list(predict(PredictRequest(model=str(tmp_path / "run" / "model"), source=source, kind="text")))
    assert [prediction["label"] in ("True", "False") for prediction in predictions] == [True, True]
    vectors = load(base).encode(["the river", "winter bread"])
    assert vectors.shape == (2, 16)
    assert np.isfinite(vectors).all()


def test_an_onnx_graph_has_the_same_outputs(base: Path):
    ours, graph = load(base).encode(["the river"]), load(base, engine="onnx").encode(["the river"])
    assert np.abs(ours - graph).max() < 1e-4


def test_the_pooled_position_is_the_last_of_gpt_and_xlnet(base: Path, member: Member):
    model = load(base)
    input_ids = torch.tensor([model.tokenizer.encode("the river").input_ids])
    with torch.no_grad():
        encoded = model.encoder(
            Batch(
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                lengths=torch.tensor([input_ids.shape[1]]),
            )
        )
        hidden = encoded.last_hidden_state[-1 if member.family in ("openai-gpt", "xlnet") else 0]
        expected = hidden if member.family == "openai-gpt" else model.encoder.pool(hidden)
    assert torch.equal(encoded.pooled[0], expected)
