"""Reading what llama-bench prints, and the tables made of it."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from swapmoe import bench_report, bench_rows
from swapmoe.bench_report import MARGIN, MIB, Limits
from swapmoe.comparison import as_text
from swapmoe.models import PRESETS, total_bytes
from swapmoe.run import Completed
from swapmoe.stream_bench import (
    ENGINES,
    UNPATCHED,
    Engine,
    Sample,
    Task,
    read_sample,
)
from swapmoe.usage import Measured, Usage

DIRECT = Engine("direct", "direct", prefetch=False)
DECODE = Task(tokens=10, is_prompt=False, repeats=3, cold=1)
LOG = """\
load_tensors:   CPU_Mapped model buffer size =  4918.28 MiB
expert_stream: budget = 512 MiB in 40 slots, 6 reader threads, direct I/O
llama_context:        CPU  output buffer size =     0.50 MiB
llama_kv_cache:        CPU KV buffer size =     3.00 MiB
sched_reserve:        CPU compute buffer size =    15.00 MiB
~llama_context:        CPU compute buffer size is  15.2830 MiB, matches expectation of  15.2830 MiB
expert_stream: statistics: stall_us=300 passes=30 budget=536870912 note=x
"""
MARKS = tuple(
    (f"llama-bench: benchmark 1/1: generation run {n}/3", Usage(n, n, n / 2, 100 * n))
    for n in (1, 2, 3)
)


def output(*seconds: float) -> str:
    return "noise\n" + json.dumps([{"samples_ns": [s * 1e9 for s in seconds]}])


def measured(
    stdout: str = output(9, 2, 3), code: int = 0, *, late: bool = False, log: str = LOG
) -> Measured:
    used = Usage(10, 6, 3, 1300)
    return Measured(Completed(("x",), code, stdout, log), used, 0, late, MARKS)


def test_what_counts_begins_after_the_cold_runs() -> None:
    sample = read_sample(DIRECT, DECODE, measured(), peak=7)
    assert sample.outcome == "ok"
    assert sample.rate == pytest.approx(20 / 5)
    assert sample.part == Usage(8, 4, 2, 1100)
    assert sample.whole.wall == 10
    assert (sample.tokens, sample.passes, sample.peak) == (20, 30, 7)
    assert (sample.readers, sample.is_direct) == (6, True)
    assert sample.statistics == {"stall_us": 300, "passes": 30, "budget": 512 * MIB}
    assert sample.buffers == {"output": MIB // 2, "KV": 3 * MIB, "compute": 15 * MIB}


def test_each_repetition() -> None:
    """Without the ones of a quick run that had ended when its log was read."""
    assert read_sample(DIRECT, DECODE, measured()).steps == ((9, 100), (2, 100), (3, 1000))
    quick = replace(measured(), marks=MARKS[:2])
    assert read_sample(DIRECT, DECODE, quick).steps == ((9, 100),)
    assert read_sample(DIRECT, DECODE, replace(measured(), marks=())).steps == ()
    assert read_sample(DIRECT, DECODE, measured("")).steps == ()


@pytest.mark.parametrize(
    ("done", "oom", "outcome"),
    [
        (measured(code=-9), True, "killed (OOM)"),
        (measured(code=-9, late=True), False, "timed out"),
        (measured(code=3), False, "failed (3)"),
        (measured(""), False, "no figures"),
        (measured("[]"), False, "no figures"),
        (measured("[{}]"), False, "no figures"),
        (measured(output(1)), False, "no figures"),
        (replace(measured(), marks=()), False, "no figures"),
    ],
)
def test_runs_without_figures_say_why(done: Measured, oom: bool, outcome: str) -> None:
    sample = read_sample(DIRECT, DECODE, done, oom=oom)
    assert (sample.outcome, sample.rate) == (outcome, None)
    assert sample.tail[-1].startswith("expert_stream: statistics")


def test_buffered_reads_and_engines_without_readers() -> None:
    log = LOG.replace("direct I/O", "buffered reads")
    assert not read_sample(DIRECT, DECODE, measured(log=log)).is_direct
    sample = read_sample(UNPATCHED, DECODE, measured(log="", code=0))
    assert (sample.readers, sample.statistics, sample.buffers) == (0, {}, {})


def test_options_of_llama_bench() -> None:
    assert [engine.name for engine in ENGINES] == [
        "fault",
        "fault+prefetch",
        "mmap",
        "mmap+prefetch",
        "direct",
        "direct+prefetch",
    ]
    assert replace(DIRECT, cache_mib=9).flags == [
        *("-es", "1", "-eio", "direct", "-ep", "0"),
        *("-ecs", "9"),
    ]
    assert UNPATCHED.flags == ["-ot", "exps=CPU"]
    long = Task(tokens=2048, is_prompt=True)
    assert long.name == "prefill 2048"
    words = " ".join(long.flags)
    assert words == "-p 2048 -n 0 -d 0 -b 2048 -ub 2048 -r 1"
    assert " ".join(DECODE.flags) == "-p 0 -n 10 -d 0 -b 512 -ub 512 -r 3"


def sample(engine: str, seconds: float, read: int, outcome: str = "ok", **more: int) -> Sample:
    statistics: Mapping[str, int] = {"passes": 30, "budget": 512 * MIB} | more
    part = Usage(20 * seconds, 10 * seconds, 5 * seconds, read)
    return Sample(
        engine=engine,
        task="decode",
        outcome=outcome,
        tokens=20,
        rate=1 / seconds if outcome == "ok" else None,
        part=part,
        whole=part,
        peak=700 * MIB,
        statistics=statistics,
        buffers={"KV": 50 * MIB, "compute": 50 * MIB},
    )


IN_MEMORY = [
    replace(sample("unpatched", 1, 0), rate=rate, part=Usage(1, 1.2, 0.6, 0))
    for rate in (20.0, 25.0)
]
LIMITS = Limits(
    experts=10**10,
    dense=64 * MIB,
    demand=10**8,
    bandwidth=10**9,
    depth=6,
    in_memory=IN_MEMORY,
)
SAMPLES = [
    sample("fault", 0.2, 2 * 10**9),
    sample("direct", 0.1, 10**9, stall_us=3_000_000),
    sample("direct", 0.08, 10**9, stall_us=3_000_000),
    sample("fault", 0.2, 2 * 10**9),
]


def test_bound_is_the_slower_of_disk_and_processor() -> None:
    # 50 MB per token at 1 GB/s, or 20 and 25 tokens per second of computing.
    assert bench_report.bounds(SAMPLES, DECODE, LIMITS) == pytest.approx([20, 20])
    fast = replace(LIMITS, bandwidth=2e9)
    assert bench_report.bounds(SAMPLES, DECODE, fast) == pytest.approx([20, 25])
    slow = replace(LIMITS, bandwidth=5e8)
    assert bench_report.bounds(SAMPLES, DECODE, slow) == pytest.approx([10, 10])
    assert bench_report.bounds(SAMPLES[:1], DECODE, LIMITS) == []
    failed = [sample("direct", 1, 1, "failed (1)"), *SAMPLES[1:2]]
    assert bench_report.bounds(failed, DECODE, fast) == pytest.approx([None, 25])


def test_table_is_per_token_for_decoding() -> None:
    head, fault, direct = bench_report.table(SAMPLES, DECODE, LIMITS)
    assert dict(zip(head, fault, strict=True)) == {
        "mode": "fault",
        "tok/s": "5.00",
        "hit %": "0",
        "MB/tok": "100.0",
        "stall ms": "-",
        "user ms": "100.0",
        "sys ms": "50.0",
        "peak GB": "0.73",
        "bound %": "25",
        "ok": "2/2",
    }
    found = dict(zip(head, direct, strict=True))
    assert (found["tok/s"], found["hit %"], found["stall ms"]) == ("11.25", "50", "100.0")


def test_failures_show_and_do_not_count() -> None:
    samples = [*SAMPLES, sample("direct", 1, 1, "killed (OOM)"), sample("mmap", 1, 1, "failed (1)")]
    _head, _fault, direct, mmap = bench_report.table(samples, DECODE, LIMITS)
    assert direct[1] == "11.25"
    assert (direct[-1], mmap[1], mmap[-1]) == ("2/3", "-", "0/1")
    lines = bench_report.notes(samples, DECODE, LIMITS)
    assert "decode: direct: killed (OOM) in 1 of 3 runs" in lines
    assert "decode: mmap: failed (1) in 1 of 1 runs" in lines


def test_tables_fit_a_terminal() -> None:
    names = ("fault", "direct", "direct+prefetch")
    samples = [sample(name, 1.25, 10**11, stall_us=10**8) for name in names]
    rows = bench_report.table(samples, DECODE, LIMITS)
    assert max(map(len, as_text(rows))) <= 80
    prompt = replace(DECODE, is_prompt=True)
    rows = bench_report.table([replace(s, task=prompt.name) for s in samples], prompt, LIMITS)
    assert max(map(len, as_text(rows))) <= 80


def test_notes_compare_round_by_round() -> None:
    assert bench_report.notes(SAMPLES, DECODE, LIMITS) == [
        "decode: direct / fault: 2.250 (2.000 to 2.500 in 2 rounds)",
        "decode: user and system time, direct / fault: 0.450 (0.400 to 0.500 in 2 rounds)",
        "decode: bound 20.00 tok/s: computing alone gives 22.50, reading 50.0 MB per token 20.00",
        "decode: bound / fault: 4.000 (4.000 to 4.000 in 2 rounds)",
        "decode: direct: 90.0 ms per token; computing as in memory takes 45.0, so 45.0 are "
        "waiting, where reading alone takes 50.0; processor 67.5 ms, in memory 90.0",
    ]


def test_memory_beside_the_plan() -> None:
    (line,) = bench_report.memory_notes(SAMPLES, LIMITS)
    assert bench_report.planned_bytes(SAMPLES[1], LIMITS) == (512 + 64 + 100) * MIB
    assert line.startswith("decode: peak of direct 700 MiB;")
    assert line.endswith(f"676; +24 (at most +{MARGIN // MIB})")


def test_rows_are_within_the_asked_sizes() -> None:
    assert [row.ratio for row in bench_rows.ROWS] == [1.23, 2.66, 3.8, 5.06]
    for row in bench_rows.ROWS:
        size = total_bytes(PRESETS[row.preset])
        assert row.limit(size) == int(size / row.ratio)


def test_plan_alternates() -> None:
    steps = bench_rows.plan(3)
    order = [step for number in range(3) for step in bench_rows.in_round(steps, number)]
    decode = [step.engine.name for step in order if step.task == bench_rows.DECODE]
    names = [engine.name for engine in ENGINES]
    most = ["fault", "mmap", "direct", "direct+prefetch"]
    assert decode == [*names, *reversed(most), *most]
    long = [step.engine.name for step in order if step.task == bench_rows.LONG_PROMPT]
    assert long == most
    quick = bench_rows.in_round(bench_rows.plan(1, quick=True), 0)
    assert {step.engine.name for step in quick} == {"fault", "mmap", "direct"}
