"""Streams as real servers sent them, with times: read where a folder of them is named by AGENTPERF_SAMPLES.

The oracle is a plain reading of the JSON with the rules of docs/how-we-measure.md.
"""

import json
import os
import re
from array import array
from pathlib import Path
from typing import Any

import pytest
from playing import record_of

from agentperf.wire import chat
from agentperf.wire.exchange import Exchange

FOLDER = Path(os.environ.get("AGENTPERF_SAMPLES") or "no-samples") / "wire-transcripts"
EVENT = re.compile(r"^\[ *(\d+\.\d)ms\] (data: .*)$", re.MULTILINE)


def streams() -> list[Any]:
    """(stamps, reads) of each chat stream; a read is one event."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^##### ", path.read_text(), flags=re.MULTILINE)[1:]:
            events = EVENT.findall(part)
            if ">>> POST /v1/chat/completions" in part and events:
                name = f"{path.stem}:{part.partition('.')[0]}"
                stamps = array("q", [round(float(ms) * 1e6) for ms, _ in events])
                found.append(pytest.param(stamps, [f"{data}\n\n".encode() for _, data in events], id=name))
    return found or [pytest.param(None, None, marks=pytest.mark.skip("no samples here"))]


def visible(chunk: dict[str, Any]) -> str:
    said = ""
    for choice in chunk.get("choices", []):
        delta = choice["delta"]
        said += (delta.get("content") or "") + (delta.get("reasoning") or delta.get("reasoning_content") or "")
        for call in delta.get("tool_calls") or []:
            said += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
    return said


@pytest.mark.parametrize(("stamps", "reads"), streams())
def test_a_recorded_stream(stamps: Any, reads: list[bytes]) -> None:
    chunks = [json.loads(read[6:]) for read in reads if b"[DONE]" not in read]
    seen = [stamp for stamp, chunk in zip(stamps, chunks, strict=False) if visible(chunk)]
    exchange = Exchange(0, stamps[-1], status=200, stamps=stamps, chunks=reads)
    exchange.headers.append(("content-type", "text/event-stream"))
    out = chat.fold(exchange)
    assert out.visible_ns == seen
    assert out.visible_chars == sum(len(visible(chunk)) for chunk in chunks)
    usage = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), None)
    if usage is not None:
        assert (out.prompt_tokens, out.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    failed = any("error" in chunk for chunk in chunks)
    assert out.outcome == ("failed" if failed else "ok"), out.error
    record = record_of(exchange, out)
    if failed:
        assert record.ttft_s is None and out.error_class == "server_error_in_stream"
        return
    assert record.ttft_s == pytest.approx(seen[0] / 1e9)
    if usage is not None and len(seen) > 1 and record.speed_tps is not None:
        n, n1 = usage["completion_tokens"], record.first_event_tokens
        assert n1 is not None and 1 <= n1 < n
        assert record.speed_tps == pytest.approx((n - n1) * 1e9 / (seen[-1] - seen[0]))
