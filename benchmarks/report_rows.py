"""Rows of the performance page: results of a benchmark in; ours, the peer, the ratio and the share of the limit out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, ours, the peer with its name, ours over the peer, and the share of the limit."""

    work: str
    ours: str
    peer: str = "–"
    ratio: float | None = None
    of_limit: float | None = None


Rows = Iterator[Row]

PEER_NAMES = {
    "sentence_transformers": "sentence-transformers", "transformers": "transformers", "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO", "ctranslate2": "CTranslate2", "llama_cpp": "llama.cpp",
}  # fmt: skip
PRECISION_SUFFIX = re.compile(r"_(bf16|int8)$")


def pretraining(results: dict[str, Any]) -> Rows:
    sizes = [match for key in results if (match := re.fullmatch(r"ratio_(bf16_)?([a-z]+)", key))]
    for match in sizes:
        prefix, size = match[1] or "", match[2]
        precision = prefix.rstrip("_") or "fp32"
        yield Row(
            f"pretraining step, BERT {size}, {precision}",
            f"{results[f'pieces_per_second_{prefix}{size}']:,.0f} tokens/s",
            f"transformers {results[f'pieces_per_second_{prefix}peer_{size}']:,.0f} tokens/s",
            results[match[0]],
            results[f"of_limit_{prefix}{size}"],
        )
        yield Row(
            f"memory of that step, BERT {size}, {precision}",
            f"{results[f'memory_mib_{prefix}{size}']:,.0f} MiB",
            f"transformers {results[f'memory_mib_{prefix}peer_{size}']:,.0f} MiB",
            results[f"memory_ratio_{prefix}{size}"],
        )
    for size in dict.fromkeys(match[2] for match in sizes):
        if f"bf16_over_fp32_{size}" in results:
            yield Row(
                f"pretraining step, BERT {size}, bf16 over fp32",
                f"{results[f'pieces_per_second_bf16_{size}']:,.0f} tokens/s",
                f"ours in fp32 {results[f'pieces_per_second_{size}']:,.0f} tokens/s",
                results[f"bf16_over_fp32_{size}"],
            )


def family(results: dict[str, Any]) -> Rows:
    for name in (key.removeprefix("of_limit_") for key in results if key.startswith("of_limit_")):
        peer = "–"
        if f"ratio_{name}" in results:
            speed = results[f"pieces_per_second_peer_{name}"]
            peer = f"transformers {speed:,.0f} tokens/s ({results[f'precision_peer_{name}']})"
        yield Row(
            f"training step, {name}, fastest precision",
            f"{results[f'pieces_per_second_{name}']:,.0f} tokens/s ({results[f'precision_{name}']})",
            peer,
            results.get(f"ratio_{name}"),
            results[f"of_limit_{name}"],
        )


def inference_family(results: dict[str, Any]) -> Rows:
    for key in (key for key in results if key.startswith("ratio_")):
        precision, _, name = key.removeprefix("ratio_").partition("_")
        yield Row(
            f"encode with {name}, {precision}",
            f"{results[f'tokens_per_second_{precision}_{name}']:,.0f} tokens/s",
            f"transformers {results[f'tokens_per_second_{precision}_peer_{name}']:,.0f} tokens/s",
            results[key],
        )


def finetuning(results: dict[str, Any]) -> Rows:
    for name, title in (("mrpc", "MRPC"), ("sst2", "SST-2")):
        if f"ratio_{name}" in results:
            yield Row(
                f"fine-tuning MiniLM, {title}, {results['precision']}",
                f"{results[f'examples_per_second_ours_{name}']:.1f} examples/s",
                f"transformers' Trainer {results[f'examples_per_second_peer_{name}']:.1f} examples/s",
                results[f"ratio_{name}"],
            )


def inference(results: dict[str, Any]) -> Rows:
    def speed(engine: str) -> str:
        return f"{results[f'sentences_per_second_{engine}']:,.0f} sentences/s"

    for precision, ours, ratio in (
        ("fp32", "ours", "ratio_fp32"), ("bf16", "ours_bf16", "ratio_bf16_peer"), ("int8", "ours_int8", "ratio_int8"),
    ):  # fmt: skip
        if ratio in results:
            peer = results[f"peer_{precision}"]
            title = f"encode with MiniLM, {precision}" + cosine_note(results, precision)
            limit = results.get(f"of_limit_{precision}")
            yield Row(title, speed(ours), f"{peer_name(peer)} {speed(peer)}", results[ratio], limit)
    if "ratio_bf16" in results:
        peer = results["peer_fp32"]
        work = "encode with MiniLM, bf16 over the fastest peer in fp32"
        yield Row(work, speed("ours_bf16"), f"{peer_name(peer)} {speed(peer)}", results["ratio_bf16"])
    if "ratio_latency" in results:
        ours, peer = results["ours_latency"], results["peer_latency"]
        yield Row(
            "one short text with MiniLM, fastest precision",
            f"{results[f'milliseconds_{ours}']:.2f} ms ({precision_of(ours)})",
            f"{peer_name(peer)} {results[f'milliseconds_{peer}']:.2f} ms ({precision_of(peer)})",
            results["ratio_latency"],
        )


def cosine_note(results: dict[str, Any], precision: str) -> str:
    return f" (mean cosine {results[f'cosine_{precision}']:.5f})" if f"cosine_{precision}" in results else ""


def precision_of(engine: str) -> str:
    match = PRECISION_SUFFIX.search(engine)
    return match[1] if match else "fp32"


def peer_name(engine: str) -> str:
    return PEER_NAMES[PRECISION_SUFFIX.sub("", engine)]


def serving(results: dict[str, Any]) -> Rows:
    served, offline = results["served"], sum(results["offline"]) / 2
    latency = f"p50 {1e3 * served['p50']:.0f} ms, p99 {1e3 * served['p99']:.0f} ms"
    yield Row(
        f"server under load, MiniLM, {results['precision']} ({latency})",
        f"{served['rate']:.1f} texts/s",
        f"our `encode` offline {offline:.1f} texts/s",
        results["of_offline"],
    )


def time_to_loss(results: dict[str, Any]) -> Rows:
    for suffix, title in (("_plain", "plain initialization"), ("", "our initialization")):
        speedup, minutes = results[f"speedup{suffix}"], results["minutes"]
        yield Row(
            f"time to transformers' held-out loss, BERT mini, {results['precision']}, {title}",
            f"{60 * minutes / speedup:.0f} s" if speedup else "not reached",
            f"transformers {60 * minutes:.0f} s",
            speedup,
        )


def preparation(results: dict[str, Any]) -> Rows:
    for work, ours, peer, name, ratio in (
        ("prepare English", "prepare_english", "encode_batch_english", "`tokenizers` alone", "ratio_english"),
        ("prepare Chinese", "prepare_chinese", "encode_batch_chinese", "`tokenizers` alone", "ratio_chinese"),
        ("prepare Chinese, whole words", "prepare_chinese_words", "rjieba", "rjieba alone", "ratio_chinese_words"),
    ):
        yield Row(work, f"{results[ours]:.1f} MB/s", f"{name} {results[peer]:.1f} MB/s", results[ratio])


def sentences(results: dict[str, Any]) -> Rows:
    for section, title in (("en", "English"), ("zh", "Chinese")):
        by_splitter = {name: sections[section] for name, sections in results["results"].items() if section in sections}
        ours = by_splitter.pop("bertworks")
        if by_splitter:
            name = max(by_splitter, key=lambda name: by_splitter[name]["f1"])
            peer = by_splitter[name]
            yield Row(
                f"split sentences, {title}; peer: the highest F1",
                f"{ours['megabytes_per_second']:.2f} MB/s (F1 {ours['f1']:.3f})",
                f"{name} {peer['megabytes_per_second']:.2f} MB/s (F1 {peer['f1']:.3f})",
                ours["megabytes_per_second"] / peer["megabytes_per_second"],
            )


def scale(results: dict[str, Any]) -> Rows:
    for size in (key.removeprefix("ratio_ddp_") for key in results if key.startswith("ratio_ddp_")):
        yield Row(
            f"DDP with 2 processes, BERT {size}, fp32",
            f"{results[f'seconds_ddp_{size}']:.3f} s a step",
            f"ours with 2 threads {results[f'seconds_threads_{size}']:.3f} s a step",
            results[f"ratio_ddp_{size}"],
        )
    if "overhead_checkpoint" in results:
        yield Row("sharded checkpoints at the default interval", f"{results['overhead_checkpoint']:.2%} of the time")
    if "ratio_ray" in results:
        yield Row(
            "prepare on 2 Ray workers",
            f"{results['seconds_ray']:.1f} s",
            f"ours with 2 processes {results['seconds_local']:.1f} s",
            results["ratio_ray"],
        )


def word_vectors(results: dict[str, Any]) -> Rows:
    ours, reference = results["rows"]
    yield Row(
        "GloVe, one thread",
        f"{ours['seconds']:.1f} s of CPU",
        f"glove.c {reference['seconds']:.1f} s of CPU",
        reference["seconds"] / ours["seconds"],
    )


def sharing(results: list[dict[str, Any]]) -> Rows:
    bert, albert = (result["grown_bytes"] / 2**20 for result in results)
    yield Row(
        f"memory of a training step, ALBERT {results[1]['size']}, fp32",
        f"{albert:,.0f} MiB",
        f"our BERT {bert:,.0f} MiB",
        albert / bert,
    )


# In the order of the page.
ROWS: dict[str, Callable[[Any], Rows]] = {
    "pretraining": pretraining, "family": family, "time_to_loss": time_to_loss, "finetuning": finetuning,
    "inference": inference,
    "inference_family": inference_family, "serving": serving, "preparation": preparation, "sentences": sentences,
    "word_vectors": word_vectors, "scale": scale, "sharing": sharing,
}  # fmt: skip
