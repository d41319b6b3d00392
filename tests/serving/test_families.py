"""Every member of the family behind the port: a fine-tuned and a pretrained folder of each answer what they can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from served_family import FAMILIES, KIN, write_pretrained_member, write_tuned_member
from small_models import TASKS

from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.inference.model import load
from bertworks.serving.inspection import AttentionQuery, attention, truncate_encoding

TEXT = "john sat on the mat in paris"
LSTMS = ("elmo", "awd-lstm")
FILLING = [family for family in FAMILIES if "masked" in KIN[family].objective]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> dict[str, Path]:
    """For each family a classifier, one for entities, and a pretrained model: FAMILY, FAMILY-tag, FAMILY-base."""
    folder = tmp_path_factory.mktemp("family")
    found = {}
    for family in FAMILIES:
        found[family] = write_tuned_member(folder / family, family, TASKS["classify"])
        found[f"{family}-tag"] = write_tuned_member(folder / f"{family}-tag", family, TASKS["tag"])
        found[f"{family}-base"] = write_pretrained_member(folder / f"{family}-base", family)
    return found


@pytest.fixture(scope="module")
def asked(ask_app: Callable[..., Any], members: dict[str, Path]) -> Callable[..., Any]:
    """Ask one of the members: the name of its model, the endpoint and the body in; status and answer out."""
    app = ask_app(models=tuple(f"{name}={folder}" for name, folder in members.items()))

    def ask(name: str, endpoint: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = app("POST", f"/v1/models/{name}/{endpoint}", body)
        return answer.status_code, answer.json()

    return ask


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tuned_member_predicts_and_embeds_as_its_folder_does(family, asked, members):
    for name in (family, f"{family}-tag"):
        status, told = asked(name, "predict", {"inputs": [TEXT]})
        assert status == 200
        (wanted,) = load(members[name]).predict([TEXT])
        (found,) = told["predictions"]
        for key, value in wanted.to_dict().items():
            if isinstance(value, str | list | tuple) and key != "id":
                assert found[key] == (list(value) if isinstance(value, tuple) else value)
    status, told = asked(family, "embed", {"inputs": [TEXT, "a dull film"]})
    assert status == 200
    np.testing.assert_allclose(told["vectors"], load(members[family]).encode([TEXT, "a dull film"]), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embeddings_of_a_piece_are_shown_and_sum_up(family, asked):
    status, told = asked(family, "tokenize", {"text": TEXT, "embeddings": True})
    assert status == 200
    parts = {name: np.array(values) for name, values in told["sample"].items()}
    total = parts.pop("sum")
    assert len(total) == len(told["pieces"])
    np.testing.assert_allclose(sum(parts.values()), total, atol=1e-5)
    assert "".join(told["texts"]).replace(" ", "") == TEXT.replace(" ", "")


@pytest.mark.parametrize("family", FAMILIES)
def test_who_reads_whom_is_shown_where_pieces_read_one_another(family, asked, members):
    status, told = asked(family, "attention", {"text": TEXT, "pair": "a cat", "strongest": 20_000})
    if family in LSTMS:
        assert status == 422
        assert "do not read one another by attention" in told["error"]["message"]
        model = load(members[family])
        row = truncate_encoding(model.tokenizer.encode(TEXT), model.encoder)
        with pytest.raises(SettingsError, match=f"'{family}' has no attention to show"):
            attention(model.encoder, row, 0, AttentionQuery(5))
        return
    assert status == 200
    length = len(told["pieces"])
    shares = np.zeros((told["num_layers"], told["num_heads"], length, length))
    for layer, head, reader, read, weight in told["links"]:
        shares[layer, head, reader, read] = weight
    np.testing.assert_allclose(shares.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(shares, shares_of_transformers(members[family], family), atol=1e-5)


def shares_of_transformers(folder: Path, family: str) -> Any:
    """What the peer says its heads read of the same pair: (L, H, T, T)."""
    kind = getattr(transformers, family_of(family).class_prefix + "Model")
    peer = kind.from_pretrained(folder, attn_implementation="eager").eval()
    encoding = load(folder).tokenizer.encode(TEXT, "a cat")
    given = {"input_ids": torch.tensor([encoding.input_ids]), "token_type_ids": torch.tensor([encoding.token_type_ids])}
    if family in ("openai-gpt", "roberta"):  # these have no segments
        del given["token_type_ids"]
    with torch.no_grad():
        found = peer(**given, output_attentions=True).attentions
    return torch.stack(found)[:, 0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prediction_is_explained_and_its_weights_add_up(family, asked):
    for name in (family, f"{family}-tag"):
        status, told = asked(name, "explain", {"input": TEXT})
        assert status == 200
        weights = [word["weight"] for text in told["texts"] for word in text["words"]]
        assert any(weights)
        gap = told["output"] - told["baseline_output"] - sum(weights) - told["elsewhere"]
        assert abs(gap) <= 0.01 * sum(map(abs, weights)) + 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pretrained_member_fills_goes_on_or_tells_the_next_word_if_it_can(family, asked, members):
    name, model = f"{family}-base", load(members[f"{family}-base"])
    mask = model.tokenizer.tokens[model.tokenizer.specials.mask]
    status, told = asked(name, "fill", {"text": f"john sat on the {mask}", "top": 3})
    assert status == (200 if family in FILLING else 422)
    if status == 200:
        assert [one["piece"] for one in told["blanks"][0]] == [
            one.token for one in model.fill_mask(f"john sat on the {mask}", 3).mask_candidates[0]
        ]
        same = asked(name, "fill", {"text": "john sat on the [MASK]", "top": 3})[1]  # whatever its own piece is called
        assert (same["blanks"], same["text"]) == (told["blanks"], "john sat on the [MASK]")
    status, told = asked(name, "generate", {"text": "john sat", "pieces": 4})
    assert status == (200 if model.text_generator is not None else 422)
    if status == 200:
        found = model.generate("john sat")
        assert tuple(told["pieces"]) == found.tokens[:4]
        assert told["text"].startswith("john sat")
    status, told = asked(name, "next", {"text": "john sat on the", "top": 2})
    if status == 200:
        assert [one["word"] for one in told["words"]] == [one.word for one in model.next_words("john sat on the", 2)]
    assert status == (200 if model.can_predict_words else 422)


def test_gpt_and_a_filler_say_what_stands_before_as_far_as_they_can(asked):
    status, told = asked("openai-gpt-base", "next", {"text": "sat", "backward": True})
    assert status == 422
    assert "cannot tell what stood before" in told["error"]["message"]
    status, told = asked("bert-base", "next", {"text": "sat", "backward": True})
    assert status == 200
    assert len(told["words"]) == 5
    assert asked("bert-base", "generate", {"text": "sat"})[0] == 422


def test_chance_follows_the_seed_and_too_much_is_refused(asked):
    body = {"text": "the", "pieces": 6, "nucleus": 0.9, "temperature": 2.0, "seed": 3}
    first, again = asked("openai-gpt-base", "generate", body), asked("openai-gpt-base", "generate", body)
    assert first == again
    assert asked("openai-gpt-base", "generate", {**body, "seed": 4}) != first
    greedy = asked("openai-gpt-base", "generate", {"text": "the", "pieces": 6})[1]
    assert (
        greedy["pieces"] == asked("openai-gpt-base", "generate", {"text": "the", "pieces": 6, "top_k": 1})[1]["pieces"]
    )
    for wrong in ({"pieces": 513}, {"pieces": 0}, {"nucleus": 0}, {"temperature": 0}, {"top_k": -1}, {"many": 1}):
        assert asked("openai-gpt-base", "generate", {"text": "the", **wrong})[0] == 400
    status, told = asked("openai-gpt-base", "generate", {"text": "cat " * 40})
    assert status == 422
    assert "shorten it" in told["error"]["message"]
