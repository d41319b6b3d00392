"""Model cards: numbers of the run and the corpus by hand, notes merged by title, nothing about what is unknown."""

import json
from pathlib import Path

import pytest
from small_models import CONFIG, write_pretrained

from bertworks.disk import sha256
from bertworks.exporters.corpus_facts import CorpusFacts, SourceFacts
from bertworks.exporters.model_card import CardContent, summary, write_card
from bertworks.records import HeldOutRecord, Records, StepRecord
from bertworks.reports.pretrain import PretrainRun, read_pretrain_run
from bertworks.vocabulary.tokenizer import Tokenizer

CERTIFICATE = {
    "texts": "two texts",
    "scheme": {"max_rounding_error": 0.00025},
    "max_difference": {"last_hidden_state": 0.0013},
    "mean_cosine": 0.99999,
    "mlm": {"num_masked": 1_200, "loss_before": 2.5, "loss_after": 2.5004, "same_ratio": 0.998},
}
CORPUS = CorpusFacts(
    num_documents=1_234,
    num_sentences=5_678,
    num_characters=1_000_000,
    num_tokens=250_000,
    num_held_out_documents=12,
    num_held_out_tokens=2_500,
    sources=(SourceFacts("books.txt", 1_000, 900_000, 1.0), SourceFacts("new|s.txt", 234, 100_000, 2.5)),
    languages={"en": 0.9, "zh": 0.095, "de": 0.005},
)
RUN_INFO = {
    "machine": {"processor": "A Fine Processor", "threads": 2},
    "precision": "bf16",
    "uniform_loss": 3.85,
    "unigram_entropy": 3.2,
    "corpus": {"documents": 1_234, "sentences": 5_678, "tokens": 250_000},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("card") / "model")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> PretrainRun:
    """20 steps of 15 minutes and 1.5 million tokens, evaluated after each."""
    folder = tmp_path_factory.mktemp("run")
    with Records.open(folder, None) as records:
        for number in range(1, 21):
            shared = {"step": number, "phase": "128", "losses": {"mlm": 3.0 - number / 100}}
            progress = {"seconds": 900.0 * number, "num_tokens": 1_500_000 * number}
            records.add(StepRecord(**shared, **progress, learning_rate=1e-4, grad_norm=1.0))
            records.add(HeldOutRecord(**shared, perplexity=20.0, accuracy=0.25))
    (folder / "run.json").write_text(json.dumps(RUN_INFO))
    (folder / "recipe.toml").write_text('objective = "mlm"\nbatch_size = 32\n')
    return read_pretrain_run(folder)


def card(model: Path, **parts: object) -> str:
    content = CardContent(
        **{"name": "xx-tiny", **parts},
        version="1.2.0",
        license="Apache-2.0",
        config=CONFIG,
        tokenizer=Tokenizer.load(model),
        num_parameters=14_123_456,
        metadata={"objective": "mlm", "scores": {"held_out_loss": 2.8}},
        certificate=CERTIFICATE,
        files=model,
    )
    return write_card(content)


def sections(text: str) -> dict[str, str]:
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in text.split("\n## ")}


def test_the_card_begins_with_what_the_model_is(model: Path):
    text = card(model)
    assert text.startswith("# xx-tiny\n\nBERT with 14.1 million parameters, pretrained with bertworks (mlm).\n")
    for line in (
        "| layers | 2 |",
        "| hidden size | 24 |",
        "| parameters | 14,123,456 |",
        "| maximal length | 32 tokens |",
        f"| vocabulary | wordpiece, uncased, {CONFIG.vocab_size} tokens |",
        f"| weights | fp16, {(model / 'model.safetensors').stat().st_size / 1e6:.1f} MB |",
        "| version | 1.2.0 |",
        "| license | Apache-2.0 |",
    ):
        assert f"{line}\n" in text


def test_the_usage_has_the_commands_of_this_model(model: Path):
    usage = sections(card(model))["Use"]
    assert "pip install .      # in the folder of this file\n" in usage
    assert 'bertworks.load("xx-tiny")' in usage
    assert "from_pretrained(bertworks_xx_tiny.folder)" in usage


def test_our_own_models_are_installed_from_a_clone(model: Path):
    assert (
        "pip install ./models/en-small      # in a clone of bertworks\n"
        in sections(card(model, name="en-small"))["Use"]
    )


def test_the_data_has_counts_languages_and_sources(model: Path):
    assert sections(card(model, corpus=CORPUS))["Data"] == (
        "1,234 documents, 5,678 sentences, 1,000,000 characters and 250,000 tokens, after cleaning and deduplication. "
        "Held out from training: 12 documents with 2,500 tokens.\n\n"
        "Languages, by a guess for a sample of the documents: en 90.0 %, zh 9.5 %.\n\n"
        "| source | documents | characters | weight |\n| --- | --- | --- | --- |\n"
        "| books.txt | 1,000 | 900,000 | 1 |\n| new&#124;s.txt | 234 | 100,000 | 2.5 |"
    )


def test_without_the_corpus_the_counts_are_those_of_the_run(model: Path, run: PretrainRun):
    assert sections(card(model, run=run))["Data"] == "1,234 documents, 5,678 sentences, 250,000 tokens."


def test_the_training_has_steps_tokens_hours_machine_and_recipe(model: Path, run: PretrainRun):
    assert sections(card(model, run=run))["Training"] == (
        "20 steps, 30 million tokens, 5.0 hours (5 h 0 min), A Fine Processor with 2 threads, compute dtype bf16. The "
        'recipe:\n\n```toml\nobjective = "mlm"\nbatch_size = 32\n```'
    )


def test_the_learning_curve_has_twelve_of_the_evaluations(model: Path, run: PretrainRun):
    lines = sections(card(model, run=run))["Learning curve"].splitlines()
    assert lines[2] == "| step | phase | time | tokens seen | MLM loss | perplexity | MLM accuracy |"
    assert len(lines) == 4 + 12
    assert lines[4] == "| 1 | 128 | 15 min | 1.5 million | 2.990 | 20 | 25.0 % |"
    assert lines[-1] == "| 20 | 128 | 5 h 0 min | 30 million | 2.800 | 20 | 25.0 % |"


def test_the_scores_have_the_baselines(model: Path, run: PretrainRun):
    assert sections(card(model, run=run))["Scores"].splitlines() == [
        "- held-out loss: 2.800",
        "- uniform loss (ln V), for comparison: 3.850",
        "- unigram entropy, for comparison: 3.200",
    ]


def test_the_limits_name_length_case_and_languages(model: Path):
    limits = sections(card(model, corpus=CORPUS))["Limits"]
    assert "At most 32 tokens" in limits
    assert "uncased" in limits
    assert "Trained on text in en, zh; other languages are hardly in its data." in limits


def test_the_precision_has_the_differences_of_the_certificate(model: Path):
    assert sections(card(model))["Precision"] == (
        "The weights are fp16 and are loaded as fp32. Rounding changed a weight by at most 2.5e-04. On two texts, the "
        "largest differences to the outputs before are last_hidden_state 1.3e-03; the mean cosine of sentence vectors "
        "is 0.99999. The MLM loss on 1,200 masked tokens of them was 2.5000 and is 2.5004; 99.8 % of the predicted "
        "tokens are the same."
    )


def test_every_file_is_listed_with_its_hash(model: Path):
    lines = sections(card(model))["Files"].splitlines()[2:]
    assert len(lines) == len(list(model.iterdir()))
    weights = model / "model.safetensors"
    assert f"| model.safetensors | {weights.stat().st_size:,} | {sha256(weights)} |" in lines


def test_what_is_not_known_is_left_out(model: Path):
    assert list(sections(card(model)))[1:] == ["Use", "Scores", "Limits", "Precision", "Files"]


NOTES = """A model for the tests.

## Data

The books are in the public domain.

## Ethics

```
## not a title
```

## Scores

SST-2: 80.1
"""


def test_notes_are_added_to_the_sections_of_their_titles(model: Path, run: PretrainRun):
    text = card(model, run=run, notes=NOTES)
    parts = sections(text.replace("\n## not", "\n# not"))
    assert "(mlm).\n\nA model for the tests.\n\n|" in text
    assert parts["Data"].endswith("250,000 tokens.\n\nThe books are in the public domain.")
    assert parts["Scores"].endswith("for comparison: 3.200\n\nSST-2: 80.1")
    assert parts["Ethics"] == "```\n# not a title\n```"
    titles = ["Use", "Data", "Training", "Learning curve", "Scores", "Limits", "Precision", "Ethics", "Files"]
    assert list(parts)[1:] == titles


def test_a_finetuned_model_has_its_task_and_the_scores_of_its_splits(model: Path):
    metadata = {"task": "classify", "scores": {"dev": {"accuracy": 0.9}}}
    content = CardContent(
        name="xx-mail", version="1.0.0", license="MIT", config=CONFIG, tokenizer=Tokenizer.load(model), files=model,
        num_parameters=900, metadata=metadata, certificate=CERTIFICATE,
    )  # fmt: skip
    assert summary(content) == "BERT with 900 parameters, fine-tuned with bertworks (classify)"
    assert sections(write_card(content))["Scores"] == "- dev accuracy: 0.900"
