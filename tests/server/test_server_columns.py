"""Every engine's names end up in the right column, and a column that a page lacks says why."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from agentperf.server.columns import Gauges, Scraped, Shown, Span, engines_of, gauges, offers_of, span
from agentperf.server.engines import COLUMNS, CachePair, Column, Engine, engines, paths, wanted
from agentperf.server.page import Page, read_page
from tests.server import pages

SAMPLES = Path("/work/shared/samples/metrics")


def read(text: str) -> Page:
    return read_page(text.encode(), wanted())


def shown(*texts: str) -> list[Shown]:
    return [Shown(f"page{i}", offers_of(read(t)), engines_of(read(t))) for i, t in enumerate(texts)]


def between(before: list[str], after: list[str], model: str | None = "glm") -> tuple[Span, dict[str, str]]:
    reasons: dict[str, str] = {}
    found = span([read(t) for t in before], [read(t) for t in after], shown(*after), model, reasons)
    return found, reasons


def state(*texts: str) -> tuple[Gauges, dict[str, str]]:
    reasons: dict[str, str] = {}
    return gauges([read(t) for t in texts], shown(*texts), "glm", reasons), reasons


def share(found: Span) -> float | None:
    return None if found.cache is None else found.cache.hits / found.cache.queries


@pytest.mark.parametrize("total", ["_total", ""])
@pytest.mark.parametrize("cache", ["vllm:prefix_cache", "vllm:gpu_prefix_cache"])
@pytest.mark.parametrize("usage", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"])
def test_vllm_v1_in_all_spellings(total: str, cache: str, usage: str) -> None:
    spelling: Any = {"total": total, "cache": cache, "usage": usage}
    before = pages.vllm([5.0], hits=10, queries=20, preemptions=1, kv=0.1, **spelling)
    after = pages.vllm([5.0, 0.2, 0.6], hits=85, queries=120, preemptions=3, running=4, waiting=1, kv=0.5, **spelling)
    found, reasons = between([before], [after])
    assert found.ttft is not None
    assert (found.ttft.count, found.ttft.mean) == (2, pytest.approx(0.4))
    assert found.e2e is not None
    assert found.e2e.mean == pytest.approx(4.4)
    assert share(found) == pytest.approx(0.75)
    assert found.preemptions == 2
    assert state(after)[0] == Gauges(4, 1, 0.5)
    assert reasons == {}


def test_of_two_spellings_on_one_page_one_counts() -> None:
    old = "vllm:gpu_prefix_cache_hits_total 7\nvllm:gpu_prefix_cache_queries_total 9\n"
    found, _ = between([pages.vllm(hits=0, queries=0) + old], [pages.vllm(hits=6, queries=10) + old])
    assert share(found) == pytest.approx(0.6)


def test_vllm_v0_has_a_rolling_rate_which_is_not_read() -> None:
    found, reasons = between([pages.vllm_v0()], [pages.vllm_v0([0.3])])
    assert found.cache is None
    assert "rolling rate" in reasons["cache"]
    assert reasons["e2e"] == "the page lacks it"
    assert state(pages.vllm_v0())[0] == Gauges(3, 1, 0.25)


def test_sglang_takes_the_kv_usage_never_the_hit_rate() -> None:
    before, after = pages.sglang([1.0], prompt=100), pages.sglang([1.0, 0.5], prompt=600, cached=(300, 100))
    found, reasons = between([before], [after])
    assert state(after)[0] == Gauges(5, 2, 0.28)
    assert share(found) == pytest.approx(0.8)
    assert found.ttft is not None
    assert found.ttft.mean == pytest.approx(0.5)
    assert set(reasons) == {"e2e"}
    assert not any("cache_hit_rate" in name for name in wanted())


def test_sglang_without_a_count_of_cached_tokens() -> None:
    text = "\n".join(line for line in pages.sglang().splitlines() if "cached_tokens" not in line)
    found, reasons = between([text], [text])
    assert found.cache is None
    assert "rolling rate" in reasons["cache"]


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_tensorrt_llm(prefix: str) -> None:
    before, after = pages.trtllm(prefix=prefix), pages.trtllm([0.3], reused=30, missed=10, prefix=prefix)
    found, reasons = between([before], [after])
    assert found.cache is not None
    assert (share(found), found.cache.unit) == (0.75, "blocks")
    assert found.ttft is not None
    assert found.ttft.count == 1
    assert state(after)[0] == Gauges(4, 0, 0.62)
    assert reasons["preemptions"] == "TensorRT-LLM exports no preemptions"


def test_llama_cpp_counts_computed_tokens_apart_from_cached_ones() -> None:
    found, reasons = between([pages.llamacpp()], [pages.llamacpp(processed=100, cached=300)])
    assert share(found) == pytest.approx(0.75)
    assert reasons["ttft"] == "llama.cpp exports no TTFT histogram"
    assert state(pages.llamacpp())[0] == Gauges(2, 1, None)
    found, reasons = between([pages.llamacpp(cached=None)], [pages.llamacpp(processed=9, cached=None)])
    assert found.cache is None
    assert "no count of cached tokens" in reasons["cache"]


def test_dynamo_frontend_alone_tells_what_its_workers_would_have() -> None:
    after = pages.dynamo_frontend([0.3], inputs=100, cached=40)
    found, reasons = between([pages.dynamo_frontend()], [after])
    assert found.ttft is not None
    assert found.ttft.count == 1
    assert share(found) == pytest.approx(0.4)
    assert state(after)[0] == Gauges(None, None, None)
    assert "--metrics-url" in reasons["preemptions"]
    assert "--metrics-url" in state(after)[1]["running"]


def test_dynamo_frontend_and_workers_are_never_added_up() -> None:
    before = [pages.dynamo_frontend(), pages.dynamo_worker(pages.vllm()), pages.dynamo_worker(pages.vllm())]
    after = [
        pages.dynamo_frontend([0.5, 0.7], inputs=100, cached=99),
        pages.dynamo_worker(pages.vllm([0.4], running=2, hits=10, queries=20, kv=0.2, preemptions=1)),
        pages.dynamo_worker(pages.vllm([0.6], running=3, hits=30, queries=60, kv=0.4)),
    ]
    found, reasons = between(before, after)
    assert found.ttft is not None
    assert (found.ttft.count, found.ttft.mean) == (2, pytest.approx(0.6))  # the frontend's, nearer to the client
    assert share(found) == pytest.approx(0.5)  # the engines', summed
    assert found.preemptions == 1
    now = state(*after)[0]
    assert (now.running, now.waiting) == (5, 0)
    assert now.kv_usage == pytest.approx(0.3)
    assert reasons == {}


def test_a_worker_without_its_engines_metrics_still_has_its_own() -> None:
    assert state(pages.dynamo_worker("", 0.75))[0].kv_usage == 0.75


def test_a_page_that_failed_takes_its_columns_with_it_and_no_others() -> None:
    texts = [pages.dynamo_frontend([0.5], inputs=9), pages.dynamo_worker(pages.vllm(hits=1, queries=2))]
    known = shown(*texts)
    before: list[Scraped] = [read(texts[0]), read(texts[1])]
    after: list[Scraped] = [read(texts[0]), "the page answers HTTP 503"]
    reasons: dict[str, str] = {}
    found = span(before, after, known, None, reasons)
    assert found.ttft is not None
    assert found.cache is None
    assert reasons["cache"] == "page1: the page answers HTTP 503"
    assert gauges(after, known, None, reasons).running is None


def test_a_page_that_was_never_read_says_why() -> None:
    never = [Shown("p", {}, ())]
    reasons: dict[str, str] = {}
    span(["the page answers HTTP 503"], ["the page answers HTTP 503"], never, None, reasons)
    gauges(["the page answers HTTP 503"], never, None, reasons)
    assert set(reasons) == set(COLUMNS)
    assert set(reasons.values()) == {"p: the page answers HTTP 503"}


def test_a_restart_that_leaves_larger_counters_is_seen_by_the_start_time() -> None:
    def with_start(at: int, hits: int) -> str:
        return pages.vllm([0.2], hits=hits, queries=99) + f"process_start_time_seconds {at}\n"

    found, reasons = between([with_start(100, 1)], [with_start(200, 50)])
    assert (found.ttft, found.cache, found.preemptions) == (None, None, None)
    assert "restarted" in reasons["ttft"]
    assert between([with_start(100, 1)], [with_start(100, 50)])[1] == {}


def test_a_usage_above_one_is_no_share() -> None:
    now, reasons = state(pages.vllm(kv=42.0))
    assert now.kv_usage is None
    assert "above 1" in reasons["kv_usage"]


def test_pages_that_count_in_different_units_are_not_added() -> None:
    texts = [pages.vllm(hits=1, queries=2), pages.trtllm(reused=1, missed=1)]
    assert between(texts, texts)[1]["cache"] == "pages count in different units (tokens, blocks)"


def test_a_page_of_nothing_known() -> None:
    found, reasons = between(["up 1\n"], ["up 1\n"])
    assert found == Span(None, None, None, None)
    assert set(reasons.values()) == {"the page has no metrics of a known engine"}


def test_the_map_is_whole_and_strict() -> None:
    assert {e.name for e in engines()} == {
        "vllm", "sglang", "tensorrt-llm", "llama.cpp", "dynamo-frontend", "dynamo-worker"
    }  # fmt: skip
    assert set(COLUMNS) == set(get_args(Column))
    assert paths() == ("metrics", "prometheus/metrics")
    names = [n for e in engines() for c in COLUMNS for s in e.spellings(c) for n in ([s] if isinstance(s, str) else [s.hits])]  # fmt: skip  # noqa: E501
    assert len(names) == len(set(names))
    for text in ('name="x"\nlayer="engine"\nttfb=["y"]', 'name="x"\nlayer="other"', 'name="x"\nlayer="engine"\ncache=[{hits="h"}]'):  # fmt: skip  # noqa: E501
        with pytest.raises(msgspec.ValidationError):
            msgspec.toml.decode(text, type=Engine)
    assert CachePair("h", misses="m").other == "m"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the real pages are not here")
def test_real_pages() -> None:
    vllm = read((SAMPLES / "vllm-metrics.txt").read_text())
    assert engines_of(vllm) == ["vllm"]
    assert set(offers_of(vllm)) == set(COLUMNS)
    llama = read((SAMPLES / "llama-server-metrics.txt").read_text())
    assert engines_of(llama) == ["llama.cpp"]
    assert set(offers_of(llama)) == {"running", "waiting", "cache"}
