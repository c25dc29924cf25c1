"""Small metrics pages as the engines write them: names as in their public documentation, figures made up."""

from collections.abc import Sequence

TTFT_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5)


def histogram(name: str, labels: str, values: Sequence[float], bounds: Sequence[float] = TTFT_BOUNDS) -> str:
    """The lines of a histogram that has observed these values; `labels` as `a="b",` or empty."""
    lines = [f"# HELP {name} Made up.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{{labels}le="{bound}"}} {sum(v <= bound for v in values)}.0' for bound in bounds]
    lines.append(f'{name}_bucket{{{labels}le="+Inf"}} {len(values)}.0')
    braces = "{" + labels.rstrip(",") + "}" if labels else ""
    lines.append(f"{name}_count{braces} {len(values)}.0")
    lines.append(f"{name}_sum{braces} {sum(values)!r}")
    return "\n".join(lines) + "\n"


def vllm(
    ttft: Sequence[float] = (),
    *,
    engine: int = 0,
    running: float = 0,
    waiting: float = 0,
    queries: int = 0,
    hits: int = 0,
    preemptions: int = 0,
    kv: float = 0.0,
    cache: str = "vllm:prefix_cache",
    usage: str = "vllm:kv_cache_usage_perc",
    total: str = "_total",
    model: str = "glm",
) -> str:
    """vLLM V1; other spellings by `cache`, `usage` and `total`."""
    label = f'engine="{engine}",model_name="{model}"'
    return (
        "# HELP python_gc_objects_collected_total Not ours.\n"
        '# TYPE python_gc_objects_collected_total counter\npython_gc_objects_collected_total{generation="0"} 3.0\n'
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{label}}} {running}\n"
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{{label}}} {waiting}\n"
        f'vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} 99\n'
        f"# TYPE {usage} gauge\n{usage}{{{label}}} {kv}\n"
        f"# TYPE {cache}_queries{total} counter\n{cache}_queries{total}{{{label}}} {queries}.0\n"
        f"# TYPE {cache}_hits{total} counter\n{cache}_hits{total}{{{label}}} {hits}.0\n"
        f"{cache}_hits_created{{{label}}} 1.79e+09\n"
        f"# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total{{{label}}} {preemptions}.0\n"
        + histogram("vllm:time_to_first_token_seconds", label + ",", ttft)
        + histogram("vllm:e2e_request_latency_seconds", label + ",", [v + 4 for v in ttft], (5.0, 10.0))
    )


def vllm_v0(ttft: Sequence[float] = ()) -> str:
    """vLLM V0: a rolling hit rate, no counters."""
    label = 'model_name="glm"'
    return (
        f"vllm:num_requests_running{{{label}}} 3.0\nvllm:num_requests_swapped{{{label}}} 0.0\n"
        f"vllm:num_requests_waiting{{{label}}} 1.0\nvllm:gpu_cache_usage_perc{{{label}}} 0.25\n"
        f"vllm:cpu_cache_usage_perc{{{label}}} 0.0\nvllm:gpu_prefix_cache_hit_rate{{{label}}} 0.9\n"
        f"vllm:num_preemptions_total{{{label}}} 2.0\n"
        + histogram("vllm:time_to_first_token_seconds", label + ",", ttft)
    )


def sglang(ttft: Sequence[float] = (), *, prompt: int = 0, cached: tuple[int, int] = (0, 0), retracted: int = 0) -> str:
    """SGLang with two views of one engine (tensor ranks), priorities, and cached tokens by source."""
    label = 'engine_type="unified",model_name="glm"'
    lines = [
        "# TYPE sglang:token_usage gauge",
        *(f'sglang:token_usage{{{label},tp_rank="{r}"}} 0.28' for r in (0, 1)),
        "# TYPE sglang:cache_hit_rate gauge",
        f"sglang:cache_hit_rate{{{label}}} 0.97",
        *(f'sglang:num_running_reqs{{{label},priority="",tp_rank="{r}"}} 5' for r in (0, 1)),
        f'sglang:num_running_reqs{{{label},priority="0",tp_rank="0"}} 3',
        f'sglang:num_running_reqs{{{label},priority="10",tp_rank="0"}} 2',
        f'sglang:num_queue_reqs{{{label},priority=""}} 2',
        f'sglang:num_retracted_reqs{{{label},pid="12"}} 1',
        f'sglang:num_retracted_requests_total{{{label},tp_rank="0"}} {retracted}',
        f'sglang:num_retracted_requests_total{{{label},tp_rank="1"}} {retracted}',
        f"sglang:prompt_tokens_total{{{label}}} {prompt}",
        f'sglang:cached_tokens_total{{{label},cache_source="device"}} {cached[0]}',
        f'sglang:cached_tokens_total{{{label},cache_source="host"}} {cached[1]}',
    ]
    return "\n".join(lines) + "\n" + histogram("sglang:time_to_first_token_seconds", label + ",", ttft)


def trtllm(ttft: Sequence[float] = (), *, reused: int = 0, missed: int = 0, prefix: str = "trtllm_") -> str:
    """trtllm-serve with iteration metrics."""
    label = 'engine_type="trtllm",model_name="glm"'
    return (
        f"{prefix}kv_cache_hit_rate{{{label}}} 0.99\n{prefix}kv_cache_utilization{{{label}}} 0.62\n"
        f"{prefix}kv_cache_reused_blocks_total{{{label}}} {reused}\n"
        f"{prefix}kv_cache_missed_blocks_total{{{label}}} {missed}\n"
        f"{prefix}num_requests_running{{{label}}} 4\n{prefix}num_requests_waiting{{{label}}} 0\n"
        + histogram(f"{prefix}time_to_first_token_seconds", label + ",", ttft)
    )


def llamacpp(*, processed: int = 0, cached: int | None = 0) -> str:
    """llama.cpp; without `cached` as before it counted cached tokens."""
    return (
        f"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total {processed}\n"
        + ("" if cached is None else f"llamacpp:prompt_tokens_cached_total {cached}\n")
        + "llamacpp:prompt_tokens_seconds 185.1\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    )


def dynamo_frontend(ttft: Sequence[float] = (), *, inputs: int = 0, cached: int = 0, model: str = "glm") -> str:
    """A Dynamo frontend."""
    label = f'model="{model}"'
    return (
        f"dynamo_frontend_inflight_requests{{{label}}} 12\ndynamo_frontend_queued_requests{{{label}}} 7\n"
        + histogram("dynamo_frontend_time_to_first_token_seconds", label + ",", ttft)
        + f"dynamo_frontend_input_sequence_tokens_sum{{{label}}} {inputs}\n"
        + f"dynamo_frontend_cached_tokens_sum{{{label}}} {cached}\n"
    )


def dynamo_worker(engine_page: str, usage: float = 0.5) -> str:
    """A Dynamo worker that passes its engine's metrics through."""
    label = 'dynamo_component="backend",dp_rank="0"'
    return f"dynamo_component_gpu_cache_usage_percent{{{label}}} {usage}\n" + engine_page
