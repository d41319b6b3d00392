"""The model card of a package: a model, the records of its run and notes in, README.md out.

What the records say is written by this file. What they cannot say (origins and licences of the data, scores on other
datasets) is a Markdown file of notes: a section of it with the title of a section here is appended to that, any other
one stands before the list of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.disk import sha256
from bertworks.encoders.config import EncoderConfig
from bertworks.exporters.corpus_facts import CorpusFacts
from bertworks.models.provenance import BASE_FOLDER, display_name
from bertworks.packages import MODELS, module_name
from bertworks.reports.page import format_duration, format_number, format_percent
from bertworks.reports.pretrain import held_out_rows
from bertworks.reports.pretrain_run import PretrainRun
from bertworks.vocabulary.tokenizer import Tokenizer

_MAX_CURVE_ROWS = 12
_MIN_LANGUAGE_RATIO = 0.01
_FENCES = ("```", "~~~")

Sections = dict[str, list[str]]  # title -> paragraphs


@dataclass(frozen=True, slots=True, kw_only=True)
class CardContent:
    """What a card is written from. `run` and `corpus` are None if they are not known; `files` is the model folder."""

    name: str
    version: str
    license: str
    config: EncoderConfig
    tokenizer: Tokenizer
    num_parameters: int
    metadata: Mapping[str, Any]
    certificate: Mapping[str, Any]
    files: Path
    run: PretrainRun | None = None
    corpus: CorpusFacts | None = None
    notes: str = ""


def write_card(content: CardContent) -> str:
    """Return the model card as Markdown; equal content gives equal bytes."""
    sections: Sections = {
        "Use": _usage(content.name),
        "Data": _data(content.corpus, content.run),
        "Training": _training(content.run),
        "Learning curve": _learning_curve(content.run),
        "Scores": _scores(content.run, content.metadata),
        "Limits": _limits(content),
        "Precision": _precision(content.certificate),
    }
    introduction, notes = _split_sections(content.notes)
    for title, paragraphs in notes.items():
        sections.setdefault(title, []).extend(paragraphs)
    sections["Files"] = [_file_table(content.files), *sections.pop("Files", [])]
    parts = [f"# {content.name}", f"{summary(content)}.", *introduction, _fact_table(content)]
    for title, paragraphs in sections.items():
        parts += [f"## {title}", *paragraphs] if paragraphs else []
    return "\n\n".join(parts) + "\n"


def summary(content: CardContent) -> str:
    """Return one line: BERT with 14.1 million parameters, pretrained with bertworks (mlm-nsp)."""
    kind, objective = content.config.model_type.upper(), content.metadata.get("objective")
    training = f"pretrained with bertworks ({objective})" if objective else "packaged with bertworks"
    if "task" in content.metadata:
        training = f"fine-tuned with bertworks ({content.metadata['task']})"
    return f"{kind} with {format_number(content.num_parameters)} parameters, {training}"


def _split_sections(notes: str) -> tuple[list[str], Sections]:
    """Return the text before the first `## title` of the notes, and the text of each section."""
    title, is_code = "", False
    lines_of: dict[str, list[str]] = {"": []}
    for line in notes.splitlines():
        is_code = is_code != line.startswith(_FENCES)
        if line.startswith("## ") and not is_code:
            title = line.removeprefix("## ").strip()
            lines_of.setdefault(title, [])
        else:
            lines_of[title].append(line)
    texts = {title: "\n".join(lines).strip() for title, lines in lines_of.items()}
    introduction = texts.pop("")
    return [introduction] if introduction else [], {title: [text] for title, text in texts.items() if text}


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _fact_table(content: CardContent) -> str:
    config, tokenizer = content.config, content.tokenizer
    weights = (content.files / "model.safetensors").stat().st_size
    case = "cased" if tokenizer.cased else "uncased"
    facts = {
        "layers": f"{config.num_hidden_layers}",
        "hidden size": f"{config.hidden_size:,}",
        "parameters": f"{content.num_parameters:,}",
        "maximal length": f"{config.max_length:,} tokens",
        "vocabulary": f"{tokenizer.kind}, {case}, {tokenizer.vocab_size:,} tokens",
        "weights": f"fp16, {weights / 1e6:.1f} MB",
        "version": content.version,
        "license": content.license,
    }
    return _table(["", ""], list(facts.items()))


def _usage(name: str) -> list[str]:
    is_ours = name in MODELS
    install = f"./models/{name}      # in a clone of bertworks" if is_ours else ".      # in the folder of this file"
    return [
        f"```console\npip install {install}\n```",
        f'```python\nimport bertworks\n\nmodel = bertworks.load("{name}")\n```',
        f"Every command that takes a model takes the name: `bertworks finetune classify --model {name} …`.",
        "transformers reads the folder, too:",
        f"```python\nimport {module_name(name)}\nimport transformers\n\n"
        f"model = transformers.AutoModel.from_pretrained({module_name(name)}.folder)\n```",
    ]


def _data(corpus: CorpusFacts | None, run: PretrainRun | None) -> list[str]:
    if corpus is None:
        counts = {} if run is None else run.run_info.get("corpus") or {}
        numbers = [f"{counts[name]:,} {name}" for name in ("documents", "sentences", "tokens") if name in counts]
        return [f"{', '.join(numbers)}."] if numbers else []
    languages = [
        f"{name} {format_percent(ratio)}" for name, ratio in corpus.languages.items() if ratio >= _MIN_LANGUAGE_RATIO
    ]
    rows = [
        [source.name, f"{source.num_documents:,}", f"{source.num_characters:,}", f"{source.weight:g}"]
        for source in corpus.sources
    ]
    return [
        f"{corpus.num_documents:,} documents, {corpus.num_sentences:,} sentences, {corpus.num_characters:,} characters "
        f"and {corpus.num_tokens:,} tokens, after cleaning and deduplication. Held out from training: "
        f"{corpus.num_held_out_documents:,} documents with {corpus.num_held_out_tokens:,} tokens.",
        f"Languages, by a guess for a sample of the documents: {', '.join(languages)}.",
        _table(["source", "documents", "characters", "weight"], rows),
    ]


def _training(run: PretrainRun | None) -> list[str]:
    if run is None:
        return []
    history, machine = run.history, run.run_info.get("machine") or {}
    parts = [f"{history.last('step'):,.0f} steps", f"{format_number(history.last('num_tokens'))} tokens"]
    parts.append(f"{history.last('seconds') / 3600:.1f} hours ({format_duration(history.last('seconds'))})")
    if "processor" in machine:
        num_threads = run.run_info.get("world_size", 1) * machine.get("threads", 1)
        parts.append(f"{machine['processor']} with {num_threads} thread{'s' if num_threads > 1 else ''}")
    if "precision" in run.run_info:
        parts.append(f"compute dtype {run.run_info['precision']}")
    if BASE_FOLDER in run.run_info:
        parts.append(f"continued from {display_name(run.run_info[BASE_FOLDER])}")
    return [f"{', '.join(parts)}. The recipe:", f"```toml\n{run.recipe}\n```"]


def _learning_curve(run: PretrainRun | None) -> list[str]:
    if run is None or not run.history.held_out:
        return []
    return ["Scores on the held-out documents during training:", _table(*held_out_rows(run, _MAX_CURVE_ROWS))]


def _scores(run: PretrainRun | None, metadata: Mapping[str, Any]) -> list[str]:
    values = {
        name.replace("held_out", "held-out").replace("_", " "): value
        for name, value in _flatten(metadata.get("scores") or {})
    }
    if run is not None:
        values["uniform loss (ln V), for comparison"] = run.get_number("uniform_loss")
        values["unigram entropy, for comparison"] = run.get_number("unigram_entropy")
    lines = [f"- {name}: {value:.3f}" for name, value in values.items() if isinstance(value, float)]
    return ["\n".join(lines)] if lines else []


def _flatten(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield scores by name; those of a split, {"dev": {"accuracy": 0.9}}, as "dev accuracy"."""
    for name, value in scores.items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {metric}", number) for metric, number in value.items())
        else:
            yield name, value


def _limits(content: CardContent) -> list[str]:
    config, tokenizer = content.config, content.tokenizer
    lines = [f"- At most {config.max_length:,} tokens at once; longer texts are split into windows or truncated."]
    if not tokenizer.cased:
        lines.append("- Capitals are lost: the vocabulary is uncased.")
    if content.corpus is not None:
        languages = [name for name, ratio in content.corpus.languages.items() if ratio >= _MIN_LANGUAGE_RATIO]
        lines.append(f"- Trained on text in {', '.join(languages)}; other languages are hardly in its data.")
    lines.append(
        "- Predictions repeat what the training text says, its errors and prejudices included; they are not facts."
    )
    return ["\n".join(lines)]


def _precision(certificate: Mapping[str, Any]) -> list[str]:
    differences = ", ".join(f"{name} {value:.1e}" for name, value in certificate["max_difference"].items())
    text = (
        f"The weights are fp16 and are loaded as fp32. Rounding changed a weight by at most "
        f"{certificate['scheme']['max_rounding_error']:.1e}. On {certificate['texts']}, the largest differences to the "
        f"outputs before are {differences}; the mean cosine of sentence vectors is {certificate['mean_cosine']:.5f}."
    )
    mlm = certificate["mlm"]
    if mlm is not None:
        text += (
            f" The MLM loss on {mlm['num_masked']:,} masked tokens of them was {mlm['loss_before']:.4f} and is "
            f"{mlm['loss_after']:.4f}; {format_percent(mlm['same_ratio'])} of the predicted tokens are the same."
        )
    return [text]


def _file_table(folder: Path) -> str:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    rows = [[path.relative_to(folder).as_posix(), f"{path.stat().st_size:,}", sha256(path)] for path in files]
    return _table(["file", "bytes", "sha256"], rows)
