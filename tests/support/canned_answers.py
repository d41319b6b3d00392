"""Answers of a server without a model: a request in, JSON of the real shape out, the same every time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

CAN_INSPECT = ["embed", "tokenize", "attention"]
MODELS = [
    {"name": "small-bert", "task": None, "can": ["fill", *CAN_INSPECT], "labels": None},
    {
        "name": "reviews",
        "task": "classify",
        "can": ["predict", *CAN_INSPECT, "explain"],
        "labels": ["negative", "positive"],
    },
    {
        "name": "inference",
        "task": "classify",
        "can": ["predict", *CAN_INSPECT, "explain"],
        "labels": ["contradiction", "entailment", "neutral"],
    },
    {
        "name": "topics",
        "task": "classify",
        "can": ["predict", *CAN_INSPECT, "explain"],
        "labels": ["arts", "business", "science", "sport"],
    },
    {"name": "likeness", "task": "regress", "can": ["predict", *CAN_INSPECT, "explain"], "labels": None},
    {
        "name": "names",
        "task": "tag",
        "can": ["predict", *CAN_INSPECT, "explain"],
        "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"],
    },
    {"name": "reader", "task": "answer", "can": ["predict", *CAN_INSPECT, "explain"], "labels": None},
    {"name": "endings", "task": "choose", "can": ["predict", *CAN_INSPECT, "explain"], "labels": None},
]
NUM_LAYERS, NUM_HEADS = 6, 12
NAMES = {
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
# What speaks for a film, a score or an answer, and what against it.
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
    common = {"length": 512, "languages": None}
    return {"models": [{**model, **common, "description": f"the canned model {model['name']}"} for model in MODELS]}


def fill(body: Mapping[str, Any]) -> dict[str, Any]:
    text, count = body["text"], body["text"].count("[MASK]")
    known = CANDIDATES_ZH if re.search("[一-龥]", text) else CANDIDATES
    blanks = [known[number % 2][: body["top"]] for number in range(count)]
    fillings = []
    for place in range(min(3, body["top"])):
        pieces = [blank[(place * (number + 1)) % len(blank)] for number, blank in enumerate(blanks)]
        written = text
        for piece, _ in pieces:
            blank = r"\s*\[MASK\]" if piece.startswith("##") else r"\[MASK\]"
            written = re.sub(blank, piece.removeprefix("##"), written, count=1)
        chance = math.prod(share for _, share in pieces)
        fillings.append({"text": written, "pieces": [piece for piece, _ in pieces], "probability": chance})
    told = [[{"piece": piece, "probability": share} for piece, share in blank] for blank in blanks]
    return {"text": text, "blanks": told, "fillings": fillings}


def predict(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    predictions = [PREDICTIONS[name](one) for one in body["inputs"]]
    return {"predictions": predictions, "usage": {"pieces": 14, "windows": 1, "cut": 0}}


def _reviews(given: Any) -> dict[str, Any]:
    share = 0.971 if re.search("gripping|紧凑", str(given)) else 0.12
    label = "positive" if share > 0.5 else "negative"
    return {"id": "0", "label": label, "probabilities": {"negative": 1 - share, "positive": share}}


def _inference(given: Any) -> dict[str, Any]:
    return {
        "id": "0",
        "label": "entailment",
        "probabilities": {"contradiction": 0.02, "entailment": 0.87, "neutral": 0.11},
    }


def _topics(given: Any) -> dict[str, Any]:
    shares = {"arts": 0.92, "business": 0.61, "science": 0.07, "sport": 0.0003}
    return {"id": "0", "label": "arts|business", "probabilities": shares}


def _likeness(given: Any) -> dict[str, Any]:
    return {"id": "0", "value": 4.318}


def _names(given: str) -> dict[str, Any]:
    spans = []
    for name, label in NAMES.items():
        for found in re.finditer(re.escape(name), given):
            start, end = found.span()
            spans.append({"start": start, "end": end, "label": label, "text": name, "probability": 0.97})
    return {"id": "0", "words": given.split(), "tags": [], "spans": sorted(spans, key=lambda span: span["start"])}


def _reader(given: Mapping[str, str]) -> dict[str, Any]:
    context = given["context"]
    known = [("27 May 1937", 0.72), ("January 1933", 0.11), ("May 1937", 0.07), ("1968年", 0.8), ("1960年", 0.1)]
    spans = [
        {"text": text, "start": context.index(text), "end": context.index(text) + len(text), "probability": share}
        for text, share in known
        if text in context
    ]
    if spans:
        return {"id": "0", **spans[0], "runners_up": spans[1:], "null_odds": -5.2}
    nearest = {"text": context[:8], "start": 0, "end": 8, "probability": 0.09}
    return {"id": "0", "text": "", "start": 0, "end": 0, "probability": 0.81, "runners_up": [nearest], "null_odds": 2.2}


def _endings(given: Mapping[str, Any]) -> dict[str, Any]:
    shares = [0.9, 0.06, 0.04, *[0.0] * 10][: len(given["choices"])]
    return {"id": "0", "choice": 0, "text": given["choices"][0], "probabilities": shares}


PREDICTIONS = {
    "reviews": _reviews,
    "inference": _inference,
    "topics": _topics,
    "likeness": _likeness,
    "names": _names,
    "reader": _reader,
    "endings": _endings,
}


def pieces_of(text: str, pair: str | None) -> list[tuple[str, int, str]]:
    """Return (piece, segment, text): words of more than six letters are cut in two, ideographs stand alone."""
    found = [("[CLS]", 0, "")]
    for segment, one in enumerate([text] if pair is None else [text, pair]):
        for word in re.findall(r"[一-龥]|\w+|[^\w\s]", one):
            cut = word[:5] if len(word) > 6 else word
            found.append((cut.lower(), segment, cut))
            if cut != word:
                found.append(("##" + word[5:].lower(), segment, word[5:]))
        found.append(("[SEP]", segment, ""))
    return found


def tokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    rows = pieces_of(body["text"], body.get("pair"))
    parts = ("piece", "position", "segment")
    sample = {part: [[_wave(part, place, unit) for unit in range(16)] for place in range(len(rows))] for part in parts}
    sample["sum"] = [
        [sum(sample[part][place][unit] for part in parts) for unit in range(16)] for place in range(len(rows))
    ]
    return {
        "pieces": [piece for piece, _, _ in rows],
        "ids": [101 + 37 * place for place in range(len(rows))],
        "segments": [segment for _, segment, _ in rows],
        "positions": list(range(len(rows))),
        "offsets": [None] * len(rows),
        "texts": [text for _, _, text in rows],
        "norms": {part: [1.25] * len(rows) for part in sample},
        "sample": sample,
    }


def _wave(part: str, place: int, unit: int) -> float:
    pace = {"piece": 7.3 * (place + 1), "position": 0.35 * place, "segment": 1.0}[part]
    return {"piece": 0.7, "position": 0.35, "segment": 0.15}[part] * math.sin(pace + 1.7 * unit)


def attention(body: Mapping[str, Any]) -> dict[str, Any]:
    rows = pieces_of(body["text"], body.get("pair"))[:512]
    layers = range(NUM_LAYERS) if body["layer"] is None else [body["layer"]]
    heads = range(NUM_HEADS) if body["head"] is None else [body["head"]]
    links = [link for layer in layers for head in heads for link in _head_links(layer, head, len(rows))]
    links.sort(key=lambda link: -link[4])
    return {
        "pieces": [piece for piece, _, _ in rows],
        "segments": [segment for _, segment, _ in rows],
        "num_layers": NUM_LAYERS,
        "num_heads": NUM_HEADS,
        "links": links[: body["strongest"]],
        "cut": 0,
    }


def _head_links(layer: int, head: int, count: int) -> list[list[float]]:
    """Some heads read the piece before or after, some the last one, some far away, most of them a little of each."""
    links: list[list[float]] = []
    for start in range(count):
        ends = {0: max(0, start - 1), 1: min(count - 1, start + 1), 2: count - 1, 3: (start * (layer + 2)) % count}
        end = ends[(layer + head) % 4]
        weight = 0.35 + 0.6 * abs(math.sin(3.1 * start + 5.3 * head + layer))
        links.append([layer, head, start, end, round(weight, 4)])
        links.append([layer, head, start, (end + 3) % count, round((1 - weight) * 0.6, 4)])
    return links


def explain(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body["input"]
    values = [given] if isinstance(given, str) else list(given.values())
    texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
    weighed = [_weighed(text, number) for number, text in enumerate(texts, 1)]
    total = sum(word["weight"] for text in weighed for word in text["words"])
    told = {
        "target": f"'{body['target'] or 'positive'}'",
        "output": 0.4 + total,
        "baseline_output": 0.4,
        "texts": weighed,
    }
    return {**told, "elsewhere": 0.0, "gap": 0.0, "steps": 32, "cut": 0}


def _weighed(text: str, number: int) -> dict[str, Any]:
    words = [
        {
            "word": found.group(),
            "start": found.start(),
            "end": found.end(),
            "weight": WEIGHTS.get(found.group().lower(), 0.1 * (len(found.group()) % 4 - 1)),
        }
        for found in re.finditer(r"[一-龥]|\w+|[^\w\s]", text)
    ]
    return {"title": f"text {number}", "text": text, "words": words, "pieces": []}


def vector_map(body: Mapping[str, Any]) -> dict[str, Any]:
    """Points on a spiral, and cosines that jump about."""
    numbers = range(len(body["inputs"]))
    points = [[math.cos(2.4 * place) * (1 + place), math.sin(2.4 * place) * (1 + place)] for place in numbers]
    scores = [round(0.82 - 0.07 * ((5 * place + 3) % 11), 4) for place in numbers]
    return {"points": points, "scores": None if body["query"] is None else scores}


def search(body: Mapping[str, Any]) -> dict[str, Any]:
    found = [("Read the file line by line with a for loop.", 0.71), ("open() returns a file object.", 0.64)]
    results = [
        {"text": text, "score": score, "document": f"library/io-{number}", "place": 10 * number}
        for number, (text, score) in enumerate(found, 1)
    ]
    return {"results": results[: body["top"]]}
