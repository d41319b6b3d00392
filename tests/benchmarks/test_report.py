"""The performance page: records in, tables out; a partial run renews its rows; a failed benchmark is named."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    REPORT = SimpleNamespace(**runpy.run_path(str(FOLDER / "report.py")))
    BENCH = SimpleNamespace(**runpy.run_path(str(FOLDER / "bench.py")))

RUN = {
    "date": "2026-11-17", "minutes": 2.34, "command": "python benchmarks/x.py --json",
    "machine": {"processor": "AMD EPYC", "cores": 2, "flags": ["avx512f", "avx512_bf16"]},
    "versions": {"python": "3.11.2", "torch": "2.13.0"},
}  # fmt: skip
SERVING = {
    "of_offline": 0.9, "precision": "bf16", "served": {"rate": 90.0, "p50": 0.25, "p99": 0.4}, "offline": [101.0, 99.0],
}  # fmt: skip
INFERENCE = {
    "ratio_fp32": 0.96, "peer_fp32": "openvino", "of_limit_fp32": 0.752, "ratio_bf16_peer": 1.2,
    "peer_bf16": "openvino_bf16", "of_limit_bf16": 0.5, "cosine_bf16": 0.99995, "ratio_bf16": 1.6,
    "ratio_latency": 0.5, "ours_latency": "ours_bf16", "peer_latency": "ctranslate2_int8",
    "sentences_per_second_ours": 230.0, "sentences_per_second_openvino": 240.0,
    "sentences_per_second_ours_bf16": 384.0, "sentences_per_second_openvino_bf16": 320.0,
    "milliseconds_ours_bf16": 3.0, "milliseconds_ctranslate2_int8": 1.5,
}  # fmt: skip


def lines_of(page: str, name: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(f"| {name} |")]


def record(results: Any) -> dict[str, Any]:
    return {"results": results, **RUN}


def test_rows_have_ours_the_peer_with_its_name_the_ratio_and_the_share_of_the_limit() -> None:
    page = REPORT.render({"inference": record(INFERENCE)})
    assert lines_of(page, "inference")[:-1] == [
        "| inference | encode with MiniLM, fp32 | 230 sentences/s | OpenVINO 240 sentences/s | 0.96 | 75% |",
        "| inference | encode with MiniLM, bf16 (mean cosine 0.99995) | 384 sentences/s "
        "| OpenVINO 320 sentences/s | 1.20 | 50% |",
        "| inference | encode with MiniLM, bf16 over the fastest peer in fp32 | 384 sentences/s "
        "| OpenVINO 240 sentences/s | 1.60 | – |",
        "| inference | one short text with MiniLM, fastest precision | 3.00 ms (bf16) | CTranslate2 1.50 ms (int8) "
        "| 0.50 | – |",
    ]


def test_run_has_date_machine_and_versions() -> None:
    page = REPORT.render({"serving": record(SERVING)})
    assert lines_of(page, "serving") == [
        "| serving | server under load, MiniLM, bf16 (p50 250 ms, p99 400 ms) | 90.0 texts/s "
        "| our `encode` offline 100.0 texts/s | 0.90 | – |",
        "| serving | 2026-11-17 | 2.3 | `python benchmarks/x.py --json` | AMD EPYC, 2 cores: avx512f avx512_bf16 "
        "| python 3.11.2, torch 2.13.0 |",
    ]


def test_pretraining_has_rows_for_each_size_and_precision() -> None:
    results = {
        f"{key}_{suffix}": value
        for suffix in ("mini", "bf16_mini")
        for key, value in {
            "pieces_per_second": 8000.0, "ratio": 4.0, "of_limit": 0.5, "memory_mib": 30.0, "memory_ratio": 0.5,
        }.items()
    }  # fmt: skip
    results |= {f"{key}_{p}peer_mini": v for p in ("", "bf16_") for key, v in
                {"pieces_per_second": 2000.0, "memory_mib": 60.0}.items()}  # fmt: skip
    rows = list(REPORT.ROWS["pretraining"](results | {"bf16_over_fp32_mini": 2.0, "memory_ratio": 0.5}))
    assert [(row.work, row.ratio) for row in rows] == [
        ("pretraining step, BERT mini, fp32", 4.0),
        ("memory of that step, BERT mini, fp32", 0.5),
        ("pretraining step, BERT mini, bf16", 4.0),
        ("memory of that step, BERT mini, bf16", 0.5),
        ("pretraining step, BERT mini, bf16 over fp32", 2.0),
    ]
    assert rows[0].peer == "transformers 2,000 tokens/s"


def test_partial_run_renews_only_its_rows(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    (tmp_path / "serving.json").write_text(json.dumps(record(SERVING)))
    (tmp_path / "inference.json").write_text(json.dumps(record(INFERENCE)))
    REPORT.write_page(tmp_path, page)
    before = page.read_text()
    # Another record of serving lies there, too; but only inference was run again.
    (tmp_path / "serving.json").write_text(json.dumps(record(SERVING | {"of_offline": 0.1})))
    (tmp_path / "inference.json").write_text(
        json.dumps(record(INFERENCE | {"ratio_fp32": 1.05}) | {"date": "2027-01-01"})
    )
    REPORT.write_page(tmp_path, page, ["inference"])
    after = page.read_text()
    assert lines_of(after, "serving") == lines_of(before, "serving")
    assert "| 1.05 | 75% |" in lines_of(after, "inference")[0]
    assert "| 2027-01-01 |" in lines_of(after, "inference")[-1]
    assert lines_of(after, "family") == ["| family | not run |  |  |  |  |"]


def test_failed_benchmark_shows_its_last_line_and_replaces_its_rows() -> None:
    old = REPORT.render({"serving": record(SERVING)})
    page = REPORT.render({"serving": {"error": "peer died with exit code 1: a|b", **RUN}}, old)
    assert lines_of(page, "serving")[0] == "| serving | failed: peer died with exit code 1: a\\|b |  |  |  |  |"
    assert len(lines_of(page, "serving")) == 2
    assert "failed: the results lack 'served'" in REPORT.render({"serving": record({"of_offline": 1.0})})


def test_each_benchmark_has_rows() -> None:
    assert list(BENCH.BENCHMARKS) == list(REPORT.ROWS)
    assert all((FOLDER / benchmark.script).is_file() for benchmark in BENCH.BENCHMARKS.values())


def test_data_folder_is_given_where_it_is_used() -> None:
    assert BENCH.BENCHMARKS["inference"].command(None) == ["inference.py", "--sentences", "1000", "--json"]
    assert BENCH.BENCHMARKS["time_to_loss"].command("d") == ["time_to_loss.py", "d", "--json"]
    assert "d/books-en" in BENCH.BENCHMARKS["sentences"].command("d")


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("print('warming up'); print('[1, 2]')", {"results": [1, 2]}),
        ("import sys; print('[1]'); sys.exit('no peers\\n')", {"error": "no peers"}),
        ("import sys; sys.exit(4)", {"error": "exit code 4, and no output"}),
        ("import time; time.sleep(60)", {"error": "it did not end within 0.01 minutes"}),
    ],
)
def test_outcome_of_a_benchmark(program: str, outcome: dict[str, Any]) -> None:
    max_minutes = 0.01 if "sleep" in program else 1.0
    assert BENCH.run_command([sys.executable, "-c", program], max_minutes) == outcome


def test_others_run_when_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(benchmark: Any, data: Path | None) -> dict[str, Any]:
        return record(SERVING) if benchmark.script == "serving.py" else {"error": "no peers", **RUN}

    monkeypatch.setitem(BENCH.main.__globals__, "run", run)
    arguments = ["--only", "inference,finetuning,serving", "--output", str(tmp_path), "--page", str(tmp_path / "p.md")]
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    with pytest.raises(SystemExit, match="failed: inference"):
        BENCH.main()
    page = (tmp_path / "p.md").read_text()
    assert "failed: no peers" in lines_of(page, "inference")[0]
    assert "90.0 texts/s" in lines_of(page, "serving")[0]
    assert lines_of(page, "finetuning") == ["| finetuning | not run |  |  |  |  |"]  # it needs a data folder


@pytest.mark.parametrize(
    ("name", "results", "line"),
    [
        (
            "family",
            {"of_limit_gpt": 0.5, "pieces_per_second_gpt": 3000.0, "precision_gpt": "bf16", "ratio_gpt": 1.5,
             "pieces_per_second_peer_gpt": 2000.0, "precision_peer_gpt": "fp32"},
            "training step, gpt, fastest precision | 3,000 tokens/s (bf16) | transformers 2,000 tokens/s (fp32) "
            "| 1.50 | 50% |",
        ),
        (
            "family",
            {"of_limit_elmo_full": 0.5, "pieces_per_second_elmo_full": 900.0, "precision_elmo_full": "fp32"},
            "training step, elmo_full, fastest precision | 900 tokens/s (fp32) | – | – | 50% |",
        ),
        (
            "finetuning",
            {"precision": "bf16", "examples_per_second_ours_sst2": 90.0, "examples_per_second_peer_sst2": 30.0,
             "ratio_sst2": 3.0},
            "fine-tuning MiniLM, SST-2, bf16 | 90.0 examples/s | transformers' Trainer 30.0 examples/s | 3.00 | – |",
        ),
        (
            "time_to_loss",
            {"precision": "bf16", "minutes": 5.0, "speedup": 4.0, "speedup_plain": 0.0},
            "time to transformers' held-out loss, BERT mini, bf16, plain initialization | not reached "
            "| transformers 300 s | 0.00 | – |",
        ),
        (
            "preparation",
            {"prepare_english": 5.0, "encode_batch_english": 10.0, "ratio_english": 0.5, "prepare_chinese": 1.0,
             "encode_batch_chinese": 1.0, "ratio_chinese": 1.0, "prepare_chinese_words": 1.0, "rjieba": 1.0,
             "ratio_chinese_words": 1.0},
            "prepare English | 5.0 MB/s | `tokenizers` alone 10.0 MB/s | 0.50 | – |",
        ),
        (
            "sentences",
            {"results": {name: {section: {"f1": f1, "megabytes_per_second": speed} for section in ("en", "zh")}
                         for name, f1, speed in (("bertworks", 0.99, 10.0), ("pysbd", 0.9, 0.5), ("syntok", 0.8, 5.0))}
             | {"blingfire": {}}},
            "split sentences, English; peer: the highest F1 | 10.00 MB/s (F1 0.990) | pysbd 0.50 MB/s (F1 0.900) "
            "| 20.00 | – |",
        ),
        (
            "word_vectors",
            {"rows": [{"who": "ours", "seconds": 4.0}, {"who": "one by one", "seconds": 2.0}]},
            "GloVe, one thread | 4.0 s of CPU | glove.c 2.0 s of CPU | 0.50 | – |",
        ),
        (
            "scale",
            {"ratio_ddp_mini": 0.9, "seconds_ddp_mini": 1.0, "seconds_threads_mini": 0.9, "ratio_ddp": 0.9},
            "DDP with 2 processes, BERT mini, fp32 | 1.000 s a step | ours with 2 threads 0.900 s a step | 0.90 | – |",
        ),
        (
            "sharing",
            [{"size": "base", "grown_bytes": 2**31}, {"size": "base", "grown_bytes": 2**29}],
            "memory of a training step, ALBERT base, fp32 | 512 MiB | our BERT 2,048 MiB | 0.25 | – |",
        ),
    ],
)  # fmt: skip
def test_first_row_of_each_benchmark(name: str, results: Any, line: str) -> None:
    assert lines_of(REPORT.render({name: record(results)}), name)[0] == f"| {name} | {line}"
