"""Canned responses for tests of the page: a request body in, JSON of the real shape out, the same every time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

INSPECTION = ["embed", "tokenize", "attention"]
TASK_CAPABILITIES = ["predict", *INSPECTION, "explain"]
MODELS: list[dict[str, Any]] = [
    {"name": "small-bert", "task": None, "capabilities": ["fill-mask", *INSPECTION], "labels": None},
    {"name": "reviews", "task": "classify", "capabilities": TASK_CAPABILITIES, "labels": ["negative", "positive"]},
    {
        "name": "inference",
        "task": "classify",
        "capabilities": TASK_CAPABILITIES,
        "labels": ["contradiction", "entailment", "neutral"],
    },
    {
        "name": "topics",
        "task": "classify",
        "capabilities": TASK_CAPABILITIES,
        "labels": ["arts", "business", "science", "sport"],
    },
    {"name": "similarity", "task": "regress", "capabilities": TASK_CAPABILITIES, "labels": None},
    {
        "name": "entities",
        "task": "tag",
        "capabilities": TASK_CAPABILITIES,
        "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"],
    },
    {"name": "squad", "task": "answer", "capabilities": TASK_CAPABILITIES, "labels": None},
    {"name": "swag", "task": "choose", "capabilities": TASK_CAPABILITIES, "labels": None},
]
NUM_LAYERS, NUM_HEADS = 6, 12
ENTITIES = {
    "Marie Curie": "PER", "Pierre Curie": "PER", "Henri Becquerel": "PER", "Nobel Prize": "MISC", "Stockholm": "LOC",
    "Siemens": "ORG", "Munich": "LOC", "Anna Weber": "PER", "Bavarian Ministry of Science": "ORG",
    "周恩来": "PER", "北京": "LOC", "美国": "LOC", "尼克松": "PER", "华为": "ORG",
    "深圳": "LOC", "慕尼黑": "LOC", "巴黎": "LOC",
}  # fmt: skip
CANDIDATES = [
    [("capital", 0.83), ("heart", 0.06), ("city", 0.031), ("center", 0.012), ("##s", 0.0004)],
    [("garden", 0.41), ("sea", 0.22), ("rain", 0.11), ("street", 0.08), ("##side", 0.02)],
]
CANDIDATES_ZH = [
    [("都", 0.94), ("府", 0.02), ("席", 0.01), ("要", 0.004), ("先", 0.0006)],
    [("开", 0.71), ("红", 0.12), ("谢", 0.05), ("香", 0.03), ("落", 0.02)],
]
# Attributions of words, positive and negative.
WEIGHTS = {
    "gripping": 1.4,
    "beautifully": 1.1,
    "acted": 0.5,
    "stays": 0.3,
    "film": -0.2,
    "days": -0.45,
    "出": 0.8,
    "色": 0.7,
}


def models() -> dict[str, Any]:
    shared = {"input_fields": None, "max_length": 512, "languages": None, "num_parameters": 11_200_000}
    sizes = {"num_layers": 4, "hidden_size": 256, "scores": {}}
    data = [
        {"id": model["name"], **model, **shared, **sizes, "description": f"the canned model {model['name']}"}
        for model in MODELS
    ]
    return {"object": "list", "data": data}


def fill_mask(body: Mapping[str, Any]) -> dict[str, Any]:
    text, top_k = body["text"], body["top_k"]
    language_candidates = CANDIDATES_ZH if re.search("[一-龥]", text) else CANDIDATES
    masks = [language_candidates[index % 2][:top_k] for index in range(text.count("[MASK]"))]
    sequences = []
    for rank in range(min(3, top_k)):
        chosen = [candidates[(rank * (index + 1)) % len(candidates)] for index, candidates in enumerate(masks)]
        filled = text
        for token, _ in chosen:
            mask = r"\s*\[MASK\]" if token.startswith("##") else r"\[MASK\]"
            filled = re.sub(mask, token.removeprefix("##"), filled, count=1)
        probability = math.prod(probability for _, probability in chosen)
        sequences.append({"text": filled, "tokens": [token for token, _ in chosen], "probability": probability})
    mask_candidates = [
        [{"token": token, "probability": probability} for token, probability in candidates] for candidates in masks
    ]
    return {"text": text, "mask_candidates": mask_candidates, "sequences": sequences}


def predict(model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    predictions = [PREDICTIONS[model](raw_input) for raw_input in body["inputs"]]
    num_unknown = 6 if re.search("[а-я]", str(body["inputs"])) else 0
    warning = {"type": "unknown_tokens", "message": "", "ratio": 0.75, "examples": ["скучный", "фильм"]}
    return {
        "predictions": predictions,
        "usage": {"num_tokens": 14, "num_windows": 1, "num_truncated": 0, "num_unknown": num_unknown},
        "warnings": [warning] if num_unknown else [],
    }


def _predict_review(raw_input: Any) -> dict[str, Any]:
    positive = 0.971 if re.search("gripping|紧凑", str(raw_input)) else 0.12
    label = "positive" if positive > 0.5 else "negative"
    return {"id": "0", "label": label, "probabilities": {"negative": 1 - positive, "positive": positive}}


def _predict_inference(raw_input: Any) -> dict[str, Any]:
    return {
        "id": "0",
        "label": "entailment",
        "probabilities": {"contradiction": 0.02, "entailment": 0.87, "neutral": 0.11},
    }


def _predict_topics(raw_input: Any) -> dict[str, Any]:
    probabilities = {"arts": 0.92, "business": 0.61, "science": 0.07, "sport": 0.0003}
    return {"id": "0", "label": "arts|business", "probabilities": probabilities}


def _predict_similarity(raw_input: Any) -> dict[str, Any]:
    return {"id": "0", "value": 4.318}


def _predict_entities(text: str) -> dict[str, Any]:
    spans = []
    for name, label in ENTITIES.items():
        for match in re.finditer(re.escape(name), text):
            start, end = match.span()
            spans.append({"start": start, "end": end, "label": label, "text": name, "probability": 0.97})
    return {"id": "0", "words": text.split(), "tags": [], "spans": sorted(spans, key=lambda span: span["start"])}


def _predict_answer(raw_input: Mapping[str, str]) -> dict[str, Any]:
    context = raw_input["context"]
    answers = [("27 May 1937", 0.72), ("January 1933", 0.11), ("May 1937", 0.07), ("1968年", 0.8), ("1960年", 0.1)]
    spans = [
        {"text": text, "start": context.index(text), "end": context.index(text) + len(text), "probability": probability}
        for text, probability in answers
        if text in context
    ]
    if spans:
        return {"id": "0", **spans[0], "runners_up": spans[1:], "null_odds": -5.2}
    span = {"text": context[:8], "start": 0, "end": 8, "probability": 0.09}
    return {"id": "0", "text": "", "start": 0, "end": 0, "probability": 0.81, "runners_up": [span], "null_odds": 2.2}


def _predict_choice(raw_input: Mapping[str, Any]) -> dict[str, Any]:
    probabilities = [0.9, 0.06, 0.04, *[0.0] * 10][: len(raw_input["choices"])]
    return {"id": "0", "choice": 0, "text": raw_input["choices"][0], "probabilities": probabilities}


PREDICTIONS = {
    "reviews": _predict_review,
    "inference": _predict_inference,
    "topics": _predict_topics,
    "similarity": _predict_similarity,
    "entities": _predict_entities,
    "squad": _predict_answer,
    "swag": _predict_choice,
}


def tokenize_pair(text: str, pair: str | None) -> list[tuple[str, int, str]]:
    """Return (token, token type id, text): words of more than six letters are split, ideographs are single tokens."""
    tokens = [("[CLS]", 0, "")]
    for token_type, segment in enumerate([text] if pair is None else [text, pair]):
        for word in re.findall(r"[一-龥]|\w+|[^\w\s]", segment):
            start = word[:5] if len(word) > 6 else word
            tokens.append((start.lower(), token_type, start))
            if start != word:
                tokens.append(("##" + word[5:].lower(), token_type, word[5:]))
        tokens.append(("[SEP]", token_type, ""))
    return tokens


def tokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    tokens = tokenize_pair(body["text"], body.get("pair"))
    positions = range(len(tokens))
    names = ("token", "position", "token_type")
    values = {
        name: [[_component(name, position, unit) for unit in range(16)] for position in positions] for name in names
    }
    values["sum"] = [
        [sum(values[name][position][unit] for name in names) for unit in range(16)] for position in positions
    ]
    return {
        "tokens": [token for token, _, _ in tokens],
        "input_ids": [101 + 37 * position for position in positions],
        "position_ids": list(positions),
        "token_type_ids": [token_type for _, token_type, _ in tokens],
        "attention_mask": [1] * len(tokens),
        "offsets": [None] * len(tokens),
        "texts": [text for _, _, text in tokens],
        "embedding_norms": {name: [1.25] * len(tokens) for name in values},
        "embedding_values": values,
    }


def _component(name: str, position: int, unit: int) -> float:
    phase = {"token": 7.3 * (position + 1), "position": 0.35 * position, "token_type": 1.0}[name]
    return {"token": 0.7, "position": 0.35, "token_type": 0.15}[name] * math.sin(phase + 1.7 * unit)


def attention(body: Mapping[str, Any]) -> dict[str, Any]:
    tokens = tokenize_pair(body["text"], body.get("pair"))[:512]
    layers = range(NUM_LAYERS) if body["layer"] is None else [body["layer"]]
    heads = range(NUM_HEADS) if body["head"] is None else [body["head"]]
    weights = [entry for layer in layers for head in heads for entry in _head_weights(layer, head, len(tokens))]
    weights.sort(key=lambda entry: -entry[4])
    return {
        "tokens": [token for token, _, _ in tokens],
        "token_type_ids": [token_type for _, token_type, _ in tokens],
        "num_layers": NUM_LAYERS,
        "num_heads": NUM_HEADS,
        "attention_weights": weights[: body["top_k"]],
        "num_truncated": 0,
    }


def _head_weights(layer: int, head: int, num_tokens: int) -> list[list[float]]:
    """Heads attend mostly to the previous, the next, the last or a distant token."""
    entries: list[list[float]] = []
    for query in range(num_tokens):
        keys = {
            0: max(0, query - 1),
            1: min(num_tokens - 1, query + 1),
            2: num_tokens - 1,
            3: (query * (layer + 2)) % num_tokens,
        }
        key = keys[(layer + head) % 4]
        weight = 0.35 + 0.6 * abs(math.sin(3.1 * query + 5.3 * head + layer))
        entries.append([layer, head, query, key, round(weight, 4)])
        entries.append([layer, head, query, (key + 3) % num_tokens, round((1 - weight) * 0.6, 4)])
    return entries


def explain(body: Mapping[str, Any]) -> dict[str, Any]:
    raw_input = body["input"]
    values = [raw_input] if isinstance(raw_input, str) else list(raw_input.values())
    texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
    attributions = [_text_attribution(text, number) for number, text in enumerate(texts, 1)]
    total = sum(word["weight"] for text in attributions for word in text["words"])
    return {
        "target": f"'{body['target'] or 'positive'}'",
        "output": 0.4 + total,
        "baseline_output": 0.4,
        "texts": attributions,
        "context_weight": 0.0,
        "convergence_delta": 0.0,
        "num_steps": 32,
        "num_truncated": 0,
    }


def _text_attribution(text: str, number: int) -> dict[str, Any]:
    words = [
        {
            "word": match.group(),
            "start": match.start(),
            "end": match.end(),
            "weight": WEIGHTS.get(match.group().lower(), 0.1 * (len(match.group()) % 4 - 1)),
        }
        for match in re.finditer(r"[一-龥]|\w+|[^\w\s]", text)
    ]
    return {"title": f"text {number}", "text": text, "words": words, "tokens": []}


def projection(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return points on a spiral, and cosine similarities in a scrambled order."""
    indices = range(len(body["inputs"]))
    points = [[math.cos(2.4 * index) * (1 + index), math.sin(2.4 * index) * (1 + index)] for index in indices]
    scores = [round(0.82 - 0.07 * ((5 * index + 3) % 11), 4) for index in indices]
    return {"points": points, "scores": None if body["query"] is None else scores}


def search(body: Mapping[str, Any]) -> dict[str, Any]:
    passages = [("Read the file line by line with a for loop.", 0.71), ("open() returns a file object.", 0.64)]
    results = [
        {"text": text, "score": score, "document": f"library/io-{number}", "sentence_index": 10 * number}
        for number, (text, score) in enumerate(passages, 1)
    ]
    return {"results": results[: body["top_k"]]}
