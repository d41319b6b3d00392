"""Encoders of other families in `inference.py --family`: token sequences in, speeds of ours and of transformers out.

Both sides have the same random weights and the same sequences, of as many tokens as texts have words. Timed is the way
from token ids to the mean vector of each sequence, in the same precision: ours with its usual batches, transformers
with the fastest of a few settings (batches by sequences or by tokens, sorted by length; bf16 weights or autocast).

B sequences, T positions, D hidden size.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import family_of
from bertworks.engines.torch_engine import EncodedBatch, TorchEngine
from bertworks.models.tensor_names import load_into
from bertworks.models.weights import Weights, normalize_names, wrap_tensors
from bertworks.vocabulary.tokenizer import Encoding
from children import Child
from inference_batches import BATCH_LIMITS, Floats, InputIds, pad, split_batches
from timing import seconds_of, show_progress

MEMBERS = (
    "roberta", "xlm-roberta", "camembert", "ernie", "distilbert", "mpnet", "electra", "deberta-v2", "modernbert",
    "albert",
)  # fmt: skip
VOCAB_SIZE, MAX_LENGTH = 30_522, 256
# Ids below the first are special tokens of some family; the padding token has the id 1 in all.
FIRST_ID, PAD_ID = 1_000, 1
# Minimum mean cosine of the vectors of transformers to ours in fp32: below, it computes something else.
MIN_COSINE = 0.9999
NUM_TUNING_SEQUENCES = 64


def make_sequences(texts: Iterable[str]) -> InputIds:
    """Return sequences of random tokens, with as many tokens as the texts have words, and two more."""
    generator = torch.Generator().manual_seed(0)
    lengths = [min(MAX_LENGTH, len(text.split()) + 2) for text in texts]
    return [torch.randint(FIRST_ID, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]


def make_peer(family_name: str, size: str) -> Any:
    """Return transformers' encoder with random weights, always the same."""
    import transformers

    family = family_of(family_name)
    config = family.config_from_preset(size, VOCAB_SIZE).resized(max_length=MAX_LENGTH)
    keys = {**dict.fromkeys(family.special_ids, PAD_ID), **family.config_to_dict(config, [])}
    torch.manual_seed(0)
    peer_config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    return getattr(transformers, f"{family.class_prefix}Model")(peer_config).eval()


def make_encoder(family_name: str, size: str) -> Encoder:
    """Return our encoder with the weights of `make_peer`."""
    family = family_of(family_name)
    config = family.config_from_preset(size, VOCAB_SIZE).resized(max_length=MAX_LENGTH)
    encoder, names = family.build(config, torch.Generator().manual_seed(0)).eval(), family.tensor_names(config)
    entries = wrap_tensors(Path("model.safetensors"), make_peer(family_name, size).state_dict())
    report = load_into(encoder, Weights(normalize_names(entries, family, names)), names)
    assert all(name.startswith(family.optional_prefixes) for name in report.missing_keys), report.missing_keys
    return encoder


def our_encode(family_name: str, size: str, precision: str) -> Callable[[InputIds], Floats]:
    """Return our function from sequences to vectors."""
    encoder = make_encoder(family_name, size)
    encoder.set_precision(precision, cast_weights=True)
    tokenizer = SimpleNamespace(specials=SimpleNamespace(pad=PAD_ID))
    engine = TorchEngine(encoder, cast(Any, tokenizer))

    def pool(batch: EncodedBatch[Encoding]) -> Iterable[torch.Tensor]:
        starts, last = batch.output.layout.starts.tolist(), batch.output.last_hidden_state
        for sequence, start in zip(batch.sequences, starts, strict=True):
            yield last[start : start + len(sequence)].mean(0)

    def encode(sequences: InputIds) -> Floats:
        encodings = (
            Encoding(tokens=(), input_ids=tuple(ids), token_type_ids=(0,) * len(ids), offsets=(), word_ids=())
            for ids in sequences
        )
        vectors: Floats = torch.stack(list(engine.predict(encodings, pool))).float().numpy()
        return vectors

    return encode


def peer_encode(family_name: str, size: str, precision: str, tuning: InputIds) -> Callable[[InputIds], Floats]:
    """Return the fastest function of transformers from sequences to vectors."""
    settings = [(torch.float32, False)] if precision == "fp32" else [(torch.bfloat16, False), (torch.float32, True)]
    candidates: list[Callable[[InputIds], Floats]] = []
    for dtype, is_autocast in settings:
        model = make_peer(family_name, size).to(dtype)
        candidates += [partial(_run_peer, model, is_autocast, limits) for limits in BATCH_LIMITS.values()]
    for candidate in candidates:
        candidate(tuning)
    return min(candidates, key=lambda candidate: min(seconds_of(partial(candidate, tuning)) for _ in range(2)))


@torch.inference_mode()
def _run_peer(model: Any, is_autocast: bool, limits: tuple[int, int], sequences: InputIds) -> Floats:
    order = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    vectors = np.empty((len(sequences), model.config.hidden_size), dtype=np.float32)
    for indices in split_batches(order, [len(sequences[index]) for index in order], limits):
        input_ids, mask, _ = (torch.from_numpy(values) for values in pad([sequences[index] for index in indices]))
        input_ids[mask == 0] = PAD_ID
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            hidden = model(input_ids, attention_mask=mask).last_hidden_state.float()  # (B, T, D)
        vectors[indices] = ((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).numpy()
    return vectors


def child(side: str, member: str, size: str, precision: str, work: Path) -> None:
    """Write the vectors of a side, then time encoding on request from standard input."""
    sequences: InputIds = json.loads((work / "sequences.json").read_text(encoding="utf-8"))
    tuning = sequences[:: -(-len(sequences) // NUM_TUNING_SEQUENCES)]
    ours = side == "ours"
    encode = our_encode(member, size, precision) if ours else peer_encode(member, size, precision, tuning)
    np.save(work / f"{side}-{precision}.npy", encode(sequences))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds_of(partial(encode, sequences)), flush=True)


def measure_member(
    member: str, size: str, precisions: Sequence[str], num_rounds: int, work: Path
) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each round by side and precision."""
    seconds: dict[tuple[str, str], list[float]] = {
        (side, precision): [] for precision in precisions for side in ("ours", "peer")
    }
    with ExitStack() as stack:
        engines = {}
        for side, precision in seconds:
            arguments = ["--family", "--members", member, "--size", size, "--precisions", precision, "--work", work]
            command = [sys.executable, str(Path(__file__).with_name("inference.py")), "--side", side, *arguments]
            engine = Child(f"{member}, {side} in {precision}", command, {"TRANSFORMERS_VERBOSITY": "error"})
            engines[side, precision] = stack.enter_context(engine)
            engine.read()
        for _ in range(num_rounds):
            for name, engine in engines.items():
                seconds[name].append(float(engine.request("encode")))
    return seconds


def member_results(member: str, seconds: dict[tuple[str, str], list[float]], num_tokens: int) -> dict[str, float | str]:
    """Return speeds and ratios of a member in each precision; a ratio is the median over rounds."""
    results: dict[str, float | str] = {}
    for precision in dict.fromkeys(precision for _, precision in seconds):
        ours, peer = seconds["ours", precision], seconds["peer", precision]
        results |= {
            f"tokens_per_second_{precision}_{member}": num_tokens / statistics.median(ours),
            f"tokens_per_second_{precision}_peer_{member}": num_tokens / statistics.median(peer),
            f"ratio_{precision}_{member}": statistics.median(b / a for a, b in zip(ours, peer, strict=True)),
        }
    return results


def check_vectors(member: str, precisions: Sequence[str], work: Path) -> None:
    """End the benchmark if both sides compute something else in fp32."""
    if "fp32" not in precisions:
        return
    ours, peer = (np.load(work / f"{side}-fp32.npy").astype(np.float64) for side in ("ours", "peer"))
    cosine = float(((ours * peer).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(peer, axis=1)).mean())
    if not cosine >= MIN_COSINE:
        sys.exit(f"{member}: the mean cosine of transformers to ours is {cosine:.5f}: it computes something else")


def measure_family(
    members: Sequence[str], size: str, precisions: Sequence[str], num_rounds: int, work: Path
) -> dict[str, float | str]:
    """Return the results of all members; the sequences are in the working folder."""
    num_tokens = sum(map(len, json.loads((work / "sequences.json").read_text(encoding="utf-8"))))
    results: dict[str, float | str] = {}
    for member in members:
        seconds = measure_member(member, size, precisions, num_rounds, work)
        check_vectors(member, precisions, work)
        results |= member_results(member, seconds, num_tokens)
        ratios = [f"{results[f'ratio_{precision}_{member}']:.2f} in {precision}" for precision in precisions]
        show_progress(f"{member}, speed over transformers': {', '.join(ratios)}")
    return results
