"""The model card of a model folder: its config, metadata and tokenizer in, the text of README.md out.

It says what bertworks.json records, and nothing that depends on the machine or the time: equal models have equal cards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bertworks.vocabulary.tokenizer import Tokenizer

CARD = "README.md"
# The words of the hub for our tasks and objectives.
_PIPELINES = {
    "classify": "text-classification",
    "regress": "text-classification",
    "choose": "multiple-choice",
    "tag": "token-classification",
    "answer": "question-answering",
    "translate": "translation",
}
_EXAMPLES = {
    "classify": 'model.predict("a text")',
    "regress": 'model.predict("a text")',
    "choose": 'model.predict(("a prompt", ["an ending", "another"]))',
    "tag": 'model.predict("a text")',
    "answer": 'model.predict(("a question?", "a passage"))',
    "translate": 'model.translate("a text")',
    "mlm": 'model.fill_mask("a [MASK] text")',
}
_MAX_LABELS = 30


def card_text(config: Mapping[str, Any], metadata: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """Return the model card as Markdown, with the front matter that the hub reads."""
    parts = [_front_matter(config, metadata), f"# {_title(config, metadata)}", _usage(metadata)]
    parts.append(_list(_facts(config, metadata, tokenizer)))
    for title, values in (("Scores", _scores(metadata)), ("Data", _data(metadata))):
        if lines := _list(values):
            parts += [f"## {title}", lines]
    return "\n\n".join(parts) + "\n"


def _title(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    kind = str(config["model_type"]).upper()
    if "task" in metadata:
        return f"{kind}, fine-tuned for {metadata['task']}"
    return f"{kind}, pretrained ({metadata['objective']})" if "objective" in metadata else kind


def _front_matter(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    task = metadata.get("task")
    values: dict[str, Any] = {"library_name": "bertworks", "tags": ["bertworks", config["model_type"]]}
    if task in _PIPELINES or str(metadata.get("objective", "")).startswith("mlm"):
        values["pipeline_tag"] = _PIPELINES.get(str(task), "fill-mask")
    if languages := [name for name in metadata.get("languages") or () if len(name) == 2]:
        values["language"] = languages
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "\n".join(["---", *lines, "---"])  # JSON is YAML


def _usage(metadata: Mapping[str, Any]) -> str:
    kind = metadata.get("task") or str(metadata.get("objective", "")).partition("-")[0]
    example = _EXAMPLES.get(str(kind), 'model.encode("a text")')
    return f'```python\nimport bertworks\n\nmodel = bertworks.load("THIS FOLDER")\n{example}\n```'


def _list(values: Iterator[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in values)


def _facts(config: Mapping[str, Any], metadata: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"):
        if key in config:
            yield key.removeprefix("num_").replace("_", " "), f"{config[key]}"
    case = "cased" if tokenizer.cased else "uncased"
    yield "vocabulary", f"{tokenizer.kind}, {case}, {tokenizer.vocab_size:,} tokens"
    if "base" in metadata:
        yield "base model", str(metadata["base"])
    if labels := list((config.get("id2label") or {}).values()):
        more = f" and {len(labels) - _MAX_LABELS:,} more" if len(labels) > _MAX_LABELS else ""
        yield "labels", ", ".join(labels[:_MAX_LABELS]) + more


def _scores(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the scores by name; those of a split, {"dev": {"accuracy": 0.9}}, as "dev accuracy"."""
    for name, value in (metadata.get("scores") or {}).items():
        for metric, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            if isinstance(number, int | float):
                yield f"{name} {metric}".strip().replace("_", " "), f"{number:.4f}"


def _data(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for split, file in (metadata.get("data") or {}).items():
        yield split, f"{file['examples']:,} examples, sha256 {file['sha256']}"
    if languages := metadata.get("languages"):
        yield "languages", ", ".join(languages)
