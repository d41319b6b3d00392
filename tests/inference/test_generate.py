"""Text generation: sampling probabilities by hand, cached against uncached logits, next words of every model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bertworks.cli.generate import app as generate
from bertworks.cli.next import app as next_words
from bertworks.encoders.families import ENCODERS, architecture_of
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.generate import GenerationConfig, TextGenerator
from bertworks.inference.model import load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.objectives.causal import next_token_logits
from bertworks.objectives.heads import MlmHead
from bertworks.sampling.batch import collate_sequences
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENIZER = Tokenizer.from_backend(
    wordpiece_backend([*SPECIALS, "play", "##ing", "sing", "the", "song", "."], cased=False)
)
MAX_LENGTH = 12


def make_generator(eos_bias: float = 0.0) -> TextGenerator:
    """A GPT with random weights; `eos_bias` raises the logit of the end token."""
    preset = ENCODERS["openai-gpt"].config_from_preset("tiny", TOKENIZER.vocab_size)
    config = preset.resized(hidden_size=16, num_attention_heads=2, max_length=MAX_LENGTH)
    encoder = ENCODERS["openai-gpt"].build(config, None)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
        if eos_bias:
            encoder.layers[-1].norm.bias.copy_(encoder.token_embeddings.weight[TOKENIZER.specials.sep] * eos_bias)
    return TextGenerator(encoder, TOKENIZER)


def log_probs(*probs: float) -> torch.Tensor:
    return torch.tensor(probs).log()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GenerationConfig(), [0, 1, 0, 0]),
        (GenerationConfig(top_k=0), [0.2, 0.5, 0.3, 0]),
        (GenerationConfig(top_k=2), [0, 5 / 8, 3 / 8, 0]),
        (GenerationConfig(top_k=0, top_p=0.5), [0, 1, 0, 0]),
        (GenerationConfig(top_k=0, top_p=0.6), [0, 5 / 8, 3 / 8, 0]),
        (GenerationConfig(top_k=0, temperature=0.5), [4 / 38, 25 / 38, 9 / 38, 0]),  # squares
        (GenerationConfig(top_k=0, top_p=0.6, temperature=0.5), [0, 1, 0, 0]),  # 25 of 38 are enough
    ],
)
def test_sampling_probabilities_worked_out_by_hand(config: GenerationConfig, expected: list[float]):
    assert config.probabilities(log_probs(0.2, 0.5, 0.3, 0.0)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    "settings", [{"max_new_tokens": 0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"temperature": 0.0}]
)
def test_invalid_settings_are_refused(settings: dict[str, float]):
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} is"):
        GenerationConfig(**settings)  # type: ignore[arg-type]


def test_greedy_decoding_with_the_cache_equals_decoding_without_it():
    generator = make_generator()
    result = generator.generate("the song", GenerationConfig(max_new_tokens=6))
    input_ids = [TOKENIZER.specials.cls, *TOKENIZER.tokenize("the song").input_ids.tolist()]
    excluded = [token_id for token_id in TOKENIZER.specials.ids if token_id != TOKENIZER.specials.sep]
    for token, probability in zip(result.tokens, result.probabilities, strict=True):
        encoding = Encoding(
            input_ids=tuple(input_ids), tokens=(), offsets=(), word_ids=(), token_type_ids=(0,) * len(input_ids)
        )
        with torch.no_grad():
            logits = next_token_logits(generator.encoder, collate_sequences([encoding], 0))[0]
        logits[excluded] = float("-inf")
        best = int(logits.argmax())
        assert TOKENIZER.tokens[best] == token
        assert probability == pytest.approx(float(torch.softmax(logits, -1)[best]), abs=1e-5)
        input_ids.append(best)
    assert len(result.tokens) == 6 or result.finish_reason == "eos"


def test_the_seed_determines_the_text():
    generator = make_generator()
    texts = [
        generator.generate("the", GenerationConfig(top_k=0, seed=seed, temperature=3.0)).text
        for seed in (0, 0, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2
    assert all(text.startswith("the") for text in texts)
    assert not any(special in text for text in texts for special in SPECIALS)


def test_generation_stops_at_the_end_token_or_at_the_last_position():
    assert make_generator(eos_bias=50.0).generate("the song").finish_reason == "eos"
    result = make_generator(eos_bias=-50.0).generate("the song", GenerationConfig(max_new_tokens=100))
    assert result.finish_reason == "max_length"
    assert len(result.tokens) == MAX_LENGTH + 1 - 3  # after "[CLS] the song"; the last position predicts one more
    assert make_generator(eos_bias=-50.0).generate("the", GenerationConfig(max_new_tokens=2)).finish_reason == (
        "max_new_tokens"
    )
    with pytest.raises(InputError, match="the text has 14 tokens, but the model reads at most 12; shorten it"):
        make_generator().generate("the " * 13)


def test_a_next_word_is_a_first_token_with_its_continuation():
    words = make_generator().next_words("the song", top_k=4)
    assert [word.probability for word in words] == sorted((word.probability for word in words), reverse=True)
    for word in words:
        assert not word.tokens[0].startswith("##")
        assert all(token.startswith("##") for token in word.tokens[1:])
        assert word.word == "".join(token.removeprefix("##") for token in word.tokens)
    assert len({word.tokens[0] for word in words}) == 4


def folder_of(path: Path, family: str) -> Path:
    config = (
        ENCODERS[family]
        .config_from_preset("tiny", TOKENIZER.vocab_size)
        .resized(hidden_size=16, num_attention_heads=2, intermediate_size=64, max_length=16)
    )
    encoder = ENCODERS[family].build(config, torch.Generator().manual_seed(0))
    config_dict = ENCODERS[family].config_to_dict(config, [architecture_of(config)])
    names = ENCODERS[family].tensor_names(config)
    tensors = to_hf_names(encoder.state_dict(), names)
    if family == "bert":
        tensors |= to_hf_names(MlmHead(config).state_dict(), ENCODERS[family].heads["mlm"])
    write_folder(path, config_dict, tensors, TOKENIZER, {})
    return path


def test_a_masked_lm_predicts_next_and_previous_words(tmp_path: Path):
    model = load(folder_of(tmp_path / "bert", "bert"))
    for backward in (False, True):
        words = model.next_words("the song", top_k=3, backward=backward)
        (candidates,) = model.fill_mask("[MASK] the song" if backward else "the song [MASK]", top_k=9).mask_candidates
        expected = [(one.token, one.probability) for one in candidates if not one.token.startswith("##")]
        assert [(word.word, word.probability) for word in words] == expected[:3]
    with pytest.raises(FolderError, match="cannot generate text: its attention is bidirectional"):
        model.generate("the song")


def test_a_causal_model_generates_and_predicts_no_previous_words(tmp_path: Path):
    model = load(folder_of(tmp_path / "gpt", "openai-gpt"))
    assert model.generate("the song", GenerationConfig(max_new_tokens=2)).text.startswith("the song")
    assert len(model.next_words("the song", top_k=2)) == 2
    with pytest.raises(FolderError, match="cannot predict previous words"):
        model.next_words("the song", backward=True)


def test_the_commands_print_the_results_of_the_model(tmp_path: Path):
    folder = folder_of(tmp_path / "gpt", "openai-gpt")
    model = load(folder)
    output = CliRunner().invoke(generate, [str(folder), "the song", "--max-new-tokens", "3"]).output
    assert output == model.generate("the song", GenerationConfig(max_new_tokens=3)).text + "\n"
    output = CliRunner().invoke(next_words, [str(folder), "the song", "--top-k", "2"]).output
    assert [line.split()[-1] for line in output.splitlines()] == [one.word for one in model.next_words("the song", 2)]
