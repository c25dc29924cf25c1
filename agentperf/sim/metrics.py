"""What the simulated server counts, in the shape and names of vLLM's /metrics."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LATENCY = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)


class Histogram:
    """Cumulative histogram of Prometheus: counts of observations at or below each bound."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Count what another one of the same bounds has counted as well."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made. Tokens unless the name says otherwise."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    queue: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prompt: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    generation: Histogram = field(default_factory=lambda: Histogram(_TOKENS))


@dataclass(frozen=True, slots=True)
class Gauges:
    """State at this moment."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the pool that running sequences use [0..1]."""


def summed(states: Sequence[tuple[Counters, Gauges]]) -> tuple[Counters, Gauges]:
    """One page for several engines of one size: counts added up, KV use as their mean."""
    total = Counters()
    for counters, _ in states:
        for item in fields(Counters):
            value = getattr(counters, item.name)
            if isinstance(value, Histogram):
                getattr(total, item.name).add(value)
            elif isinstance(value, dict):
                for reason, count in value.items():
                    total.finished[reason] += count
            else:
                setattr(total, item.name, getattr(total, item.name) + value)
    gauges = [g for _, g in states]
    usage = sum(g.kv_usage for g in gauges) / len(gauges)
    return total, Gauges(sum(g.running for g in gauges), sum(g.waiting for g in gauges), usage)


def render(model: str, counters: Counters, gauges: Gauges, kv_blocks: int, block_tokens: int) -> str:
    """Prometheus text, version 0.0.4."""
    label = f'engine="0",model_name="{_escape(model)}"'
    lines: list[str] = []

    def single(name: str, kind: str, text: str, value: float) -> None:
        lines.extend((f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{label}}} {value}"))

    single("num_requests_running", "gauge", "Requests that are being prefilled or decoded.", gauges.running)
    single("num_requests_waiting", "gauge", "Requests in the queue.", gauges.waiting)
    single("kv_cache_usage_perc", "gauge", "Share of the KV pool in use, 1 is all of it.", gauges.kv_usage)
    single("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", counters.prefix_queries)
    single("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", counters.prefix_hits)
    single("num_preemptions_total", "counter", "Sequences thrown out for want of KV blocks.", counters.preemptions)
    single(
        "prompt_tokens_total",
        "counter",
        "Prompt tokens of requests that got their first token.",
        counters.prompt_tokens,
    )
    single("prompt_tokens_cached_total", "counter", "Of these, tokens that were cached.", counters.prefix_hits)
    single("generation_tokens_total", "counter", "Tokens written.", counters.generation_tokens)
    lines += ["# HELP vllm:request_success_total Requests that ended.", "# TYPE vllm:request_success_total counter"]
    for reason, count in counters.finished.items():
        lines.append(f'vllm:request_success_total{{finished_reason="{reason}",{label}}} {count}')
    for name, text, histogram in (
        ("time_to_first_token_seconds", "From arrival to first token.", counters.ttft),
        ("inter_token_latency_seconds", "Between two outputs of a sequence.", counters.itl),
        ("e2e_request_latency_seconds", "From arrival to last token.", counters.e2e),
        ("request_queue_time_seconds", "Time in the queue.", counters.queue),
        ("request_prompt_tokens", "Prompt tokens of a request.", counters.prompt),
        ("request_generation_tokens", "Tokens written for a request.", counters.generation),
    ):
        lines += _histogram_lines(name, text, label, histogram)
    info = f'{label},block_size="{block_tokens}",num_gpu_blocks="{kv_blocks}"'
    lines += ["# HELP vllm:cache_config_info The KV pool.", "# TYPE vllm:cache_config_info gauge"]
    lines.append(f"vllm:cache_config_info{{{info}}} 1")
    lines += [
        "# HELP agentperf_sim_info This server is a simulation.",
        "# TYPE agentperf_sim_info gauge",
        f"agentperf_sim_info{{{label}}} 1",
    ]
    return "\n".join(lines) + "\n"


def _histogram_lines(name: str, text: str, label: str, histogram: Histogram) -> list[str]:
    lines = [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} histogram"]
    below = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'vllm:{name}_bucket{{{label},le="{bound}"}} {below}')
    lines.append(f"vllm:{name}_count{{{label}}} {histogram.count}")
    lines.append(f"vllm:{name}_sum{{{label}}} {histogram.total}")
    return lines


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
