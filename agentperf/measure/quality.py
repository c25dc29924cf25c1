"""What a reader of a level must be told about how far its figures go, each with cause and remedy."""

from collections.abc import Iterator

from agentperf.measure.health import Health
from agentperf.measure.judge import UNBUFFER
from agentperf.measure.metrics import LevelMetrics

SIZE_TOLERANCE = 0.02
CACHE_LEAK = 0.05
SEVERAL_TOKENS = 1.5
"""Tokens an event from which on a gap between events is no gap between tokens."""
CHARS_PER_TOKEN = (0.8, 12.0)
"""Text lies between 1 (Chinese, Japanese) and 6 (English prose) under every tokenizer; whitespace may reach 10."""
CALIBRATED_FACTOR = 3.0
"""Replies may be of another kind of text than the calibration's, which makes a factor of two to three."""
FEWER_THAN_EVENTS = 0.8
"""Tokens an event below which a count is contradicted by the events, each of which holds one token or more."""
MANY_CONNECTIONS = 0.5
ALWAYS_CLOSED = 0.95
FLAT_SHARE = 0.5


def quality_warnings(
    metrics: LevelMetrics, health: Health, *, isolated: bool = True, chars_per_token: float | None = None
) -> list[str]:
    """Sentences about one level. `chars_per_token` is that of the calibration, None where there was none."""
    return [
        *_workload(metrics, isolated=isolated),
        *_bursts(metrics, late=health.status == "invalid"),
        *_counts(metrics, chars_per_token),
        *_prompts(metrics),
        *_ends(metrics),
        *_stalls(metrics),
        *_connections(metrics),
        *(f"client: {reason}" for reason in health.reasons),
    ]


def _workload(metrics: LevelMetrics, *, isolated: bool) -> Iterator[str]:
    if not metrics.started:
        yield (
            "no request was issued in the window, so nothing was measured "
            "(the requests before it took longer than the window: lengthen --duration or --window-max)"
        )
    if metrics.prompt_ratio is not None and abs(metrics.prompt_ratio - 1) > SIZE_TOLERANCE:
        yield (
            f"prompts were {metrics.prompt_ratio - 1:+.1%} of the trace's size by the server's count "
            "(its tokenizer or chat template treats the filler unlike the calibration text)"
        )
    if isolated and metrics.cached_share is not None and metrics.expected_cached_share is not None:
        excess = metrics.cached_share - metrics.expected_cached_share
        if excess > CACHE_LEAK:
            yield (
                f"cache hit {metrics.cached_share:.0%} is above the {metrics.expected_cached_share:.0%} that sessions "
                "explain: something else was warm (use --cache-salt play, or restart the server)"
            )


def _bursts(metrics: LevelMetrics, *, late: bool) -> Iterator[str]:
    facts = metrics.streams
    if facts.suspect:
        held = f", held back for {facts.hold_s * 1e3:.0f} ms at a time" if facts.hold_s is not None else ""
        yield (
            f"{facts.buffered} of {facts.tellable} longer replies came in bursts{held}: this level is suspect, its "
            f"speeds and TTFTs are those of a buffer between server and client ({UNBUFFER})"
            + ("; or of this client, which was late itself" if late else "")
        )
    elif facts.buffered:
        yield (
            f"{facts.buffered} of {facts.tellable} longer replies came in bursts: their speeds and TTFTs are unsure "
            f"({UNBUFFER})"
        )
    if facts.without_speed:
        yield (
            f"{facts.without_speed} of {metrics.ok} replies came all at one moment and have no speed: "
            "the speed figures are of the others"
        )
    per_event = facts.tokens_per_event.p50
    if per_event is not None and per_event >= SEVERAL_TOKENS:
        yield (
            f"an event carries {per_event:.1f} tokens at the median: gaps are between events, each of them the time of "
            "so many tokens; speed and ITL are per token"
        )


def _counts(metrics: LevelMetrics, calibrated: float | None) -> Iterator[str]:
    facts = metrics.streams
    estimates = facts.token_sources.get("estimate", 0)
    if estimates:
        exact = facts.token_sources.get("usage", 0)
        mixed = f", the other {exact} are the server's: two measures in one figure" if exact else ""
        yield (
            f"{estimates} of {metrics.ok} token counts are estimates from the text (marked ~): the server sent no usage"
            f"{mixed} (enable stream_options.include_usage)"
        )
    if facts.hidden_reasoning:
        yield (
            f"{facts.hidden_reasoning} replies count reasoning tokens that were not streamed: speed is of the tokens "
            "that were, and TTFT has the time of the others in it (have the server stream its reasoning)"
        )
    chars = facts.chars_per_token
    low, high = CHARS_PER_TOKEN
    if calibrated is not None:
        low, high = max(low, calibrated / CALIBRATED_FACTOR), min(high, calibrated * CALIBRATED_FACTOR)
    if chars is not None and not low <= chars <= high:
        side = "too many tokens" if chars < low else "too few tokens"
        beside = f"; its own count of the prompts gave {calibrated:.1f}" if calibrated is not None else ""
        yield (
            f"the server counts one output token for {chars:.2f} characters (text: {low:.1f} to {high:.0f}{beside}), "
            f"so its usage seems to name {side}, and speeds are wrong by that factor (check it, or a gateway between)"
        )
    if facts.usage_per_event is not None and facts.usage_per_event < FEWER_THAN_EVENTS:
        yield (
            f"the server counts {facts.usage_per_event:.2f} output tokens an event, where an event holds at least one: "
            "its usage is too low, or it splits tokens over events; speeds are too low by up to that factor"
        )


def _prompts(metrics: LevelMetrics) -> Iterator[str]:
    facts = metrics.streams
    if facts.prompt_zero:
        yield (
            f"{facts.prompt_zero} replies say that their prompt had 0 tokens: input throughput and cache hits are not "
            "to be believed (the usage of this server or gateway leaves the prompt out)"
        )
    elif facts.prompt_sessions and facts.prompt_flat >= FLAT_SHARE * facts.prompt_sessions:
        yield (
            f"in {facts.prompt_flat} of {facts.prompt_sessions} sessions the server counted every prompt the same, "
            "though they grew by a fifth or more: its usage is no count, or it cuts prompts to its context "
            "(check the served context and --context)"
        )


def _ends(metrics: LevelMetrics) -> Iterator[str]:
    if metrics.streams.in_band_errors:
        yield (
            f"{metrics.streams.in_band_errors} streams began with status 200 and then carried an error: counted as "
            "failed (a client that looks at the status alone counts them as fast successes)"
        )
    if metrics.truncated:
        yield f"{metrics.truncated} requests were still open when the level ended and were cut off"
    if metrics.overflowed:
        yield f"{metrics.overflowed} prompts were above the served context and count for nothing (set --context lower)"


def _stalls(metrics: LevelMetrics) -> Iterator[str]:
    facts = metrics.streams
    if facts.stalled and facts.largest_gap_s is not None:
        yield (
            f"{facts.stalled} streams stood still for more than 1 s and 20 times their usual gap; the longest, "
            f"{facts.largest_gap_s:.1f} s, in request {facts.largest_gap_request}"
        )


def _connections(metrics: LevelMetrics) -> Iterator[str]:
    facts = metrics.streams
    if metrics.new_connection_share >= MANY_CONNECTIONS and facts.new_connections > 1:
        whose = (
            "the server closes after each reply"
            if metrics.new_connection_share >= ALWAYS_CLOSED
            else "kept ones were often closed"
        )
        cost = facts.handshake
        paid = (
            f", which is {cost.p50 * 1e3:.1f} ms of TTFT at the median and {cost.p99 * 1e3:.1f} ms at p99"
            if cost.p50 is not None and cost.p99 is not None
            else ""
        )
        yield (
            f"{metrics.new_connection_share:.0%} of the requests opened a connection ({whose}){paid} "
            "(let the server keep connections open for longer than the tool waits)"
        )
    if metrics.stale_retries:
        yield (
            f"{metrics.stale_retries} requests were sent again because the server had closed the kept connection: its "
            "keep-alive is shorter than the tool waits (lengthen it)"
        )
