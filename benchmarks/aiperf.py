"""aiperf, a peer from the package index, as a client of the benchmarks: run as a user would, its exports read back.

It has a virtual environment of its own (`venvs.py`) and a tiny tokenizer, trained here on the prompt's words, since it
insists on one and nothing may come from the network. It sends an X-Request-ID and exports it with each record, so its
figures are joined with the server's log request by request, as agentperf's are. Its CPU is that of the whole tree of
its processes.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from agentperf.yardstick.cores import children_on
from benchmarks.cores import Cores, TreeCpu
from benchmarks.figures import Run, Said
from benchmarks.ours import PROMPT
from benchmarks.truth import TruthServer
from benchmarks.venvs import MissingError
from benchmarks.work import Work

START_S = 45.0
"""How long it may take to begin and to end, beside its load: it starts a dozen processes, and exports at the end."""
EXPORT = "profile_export.jsonl"

TRAIN = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator([sys.argv[2]], trainers.BpeTrainer(vocab_size=600, min_frequency=1, show_progress=False,
    special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|end|>", "eos_token": "<|end|>", "pad_token": "<|end|>", "model_max_length": 131072}))
"""


def train_tokenizer(python: Path, folder: Path) -> None:
    """A small byte-level BPE that transformers' AutoTokenizer loads. MissingError when it cannot be made."""
    command = [str(python), "-c", TRAIN, str(folder), PROMPT * 20]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    if done.returncode != 0:
        raise MissingError(f"aiperf: its tokenizer cannot be trained: {done.stderr.strip()[-200:]}")


def command_of(work: Work, base_url: str, python: Path, tokenizer: Path, out: Path) -> list[str]:
    """What a user would type; the streams start spread over the length of one, as those of the other clients do."""
    options: dict[str, Any] = {
        "model": "truth",
        "url": base_url.removesuffix("/v1"),
        "endpoint-type": "chat",
        "concurrency": work.streams,
        "concurrency-ramp-duration": max(1, round(work.stream_s)),
        "benchmark-duration": round(2 * work.stream_s + work.seconds + 1),
        "benchmark-grace-period": round(work.grace_s),
        "isl": 250,
        "osl": work.tokens,
        "tokenizer": tokenizer,
        "ui": "none",
        "artifact-dir": out,
        "export-level": "records",
        "random-seed": 1,
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [str(python.parent / "aiperf"), "profile", "--streaming", "--use-server-token-count", *flags]


def run(work: Work, server: TruthServer, python: Path, cores: Cores) -> Run:
    """One run. MissingError with what it said when it fails.

    The window opens two lengths of a stream after its first request, as those of the other clients do.
    """
    with tempfile.TemporaryDirectory(prefix="agentperf-aiperf-") as name:
        folder = Path(name)
        train_tokenizer(python, folder / "tokenizer")
        command = command_of(work, server.base_url, python, folder / "tokenizer", folder / "out")
        before_ns = wall_less_monotonic_ns()
        cpu = _run(command, folder, cores, work.lifetime_s - 5)
        # Its stamps are of the wall clock; how far that is from the monotonic one is read on both sides of the run.
        offset_ns = (before_ns + wall_less_monotonic_ns()) // 2
        try:
            lines = (folder / "out" / EXPORT).read_text().splitlines()
        except OSError as error:
            raise MissingError(f"aiperf: it has exported no records ({error})") from error
    said = [s for line in lines if (s := said_by_line(line, offset_ns)) is not None]
    if not said:
        raise MissingError("aiperf: its export has no record")
    open_ns = min(s.t0_ns for s in said) + round(2 * work.stream_s * 1e9)
    close_ns = open_ns + round(work.seconds * 1e9)
    return Run("aiperf", work.streams, open_ns, close_ns, said, cpu.between(open_ns, close_ns), None)


def _run(command: list[str], folder: Path, cores: Cores, limit_s: float) -> TreeCpu:
    environment = {**os.environ, "HOME": str(folder)}
    environment.pop("HF_HUB_OFFLINE", None)  # with it, it refuses a tokenizer that is a local folder
    with children_on(cores), (folder / "said.txt").open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
        )
    with TreeCpu(process.pid) as cpu:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        said = (folder / "said.txt").read_text(errors="replace").strip()
        cause = f"did not end within {limit_s:.0f} s" if code == -1 else f"ended with {code}"
        raise MissingError(f"aiperf: {cause}: {' '.join(said[-300:].split())}")
    return cpu


def wall_less_monotonic_ns() -> int:
    """Epoch time less monotonic time, read so that a pause between the two readings does little."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        a, wall, b = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or b - a < best[0]:
            best = (b - a, wall - (a + b) // 2)
    assert best is not None
    return best[1]


def said_by_line(line: str, offset_ns: int) -> Said | None:
    """One line of its export of records; None for a request that belongs to no measurement.

    TTFT is what it reports, behind the start that it reports; the last token's stamp is the end of the request.
    """
    record = json.loads(line)
    about, metrics = record["metadata"], record.get("metrics") or {}
    if about.get("benchmark_phase") != "profiling" or not about.get("x_request_id"):
        return None

    def value(name: str) -> float | None:
        found = metrics.get(name)
        return None if found is None else float(found["value"])

    t0_ns = int(about["request_start_ns"]) - offset_ns
    ttft_ms, latency_ms = value("time_to_first_token"), value("request_latency")
    gaps = metrics.get("inter_chunk_latency")
    ok = not about.get("was_cancelled") and record.get("error") is None and ttft_ms is not None
    return Said(
        id=about["x_request_id"],
        t0_ns=t0_ns,
        first_ns=None if ttft_ms is None else t0_ns + round(ttft_ms * 1e6),
        last_ns=None if latency_ms is None else t0_ns + round(latency_ms * 1e6),
        events=None if gaps is None else len(gaps["value"]) + 1,
        speed_tps=value("output_token_throughput_per_user"),
        end_ns=int(about["request_end_ns"]) - offset_ns,
        ok=ok,
    )
