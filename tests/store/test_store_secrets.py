"""No key reaches a file of a run directory."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_journals import manifest, record, search_journal

from agentperf.store.rundir import RunWriter, read_run
from agentperf.store.secrets import is_secret_name, scrub, scrub_text

CANARY = "canary-4f9a1c77e2d04b6f9a"


@pytest.mark.parametrize(
    "value",
    [
        {"headers": {"Authorization": f"Bearer {CANARY}", "X-Team": CANARY}},
        {"headers": [["X-Any", CANARY]]},
        {"default_headers": [f"X-Any: {CANARY}"]},
        {"api_key": CANARY},
        {"apiKey": CANARY},
        {"OPENAI_API_KEY": CANARY},
        {"env": {"HF_TOKEN": CANARY}},
        {"deployment": {"auth": {"password": [CANARY]}}},
        {"url": f"https://user:{CANARY}@host/v1"},
        {"url": f"https://{CANARY}@host/v1"},
        {"url": f"https://host/v1?region=eu&api-key={CANARY}&x=1"},
        {"error": f"401: Authorization: Bearer {CANARY} is not valid"},
        {"error": f"curl -H 'x-api-key: {CANARY}'"},
        {"error": f'{{"Authorization": "Basic {CANARY}"}}'},
        {"error": f"access_token={CANARY}"},
    ],
)
def test_each_place_of_a_secret(value: Any) -> None:
    clean = scrub(value)
    assert CANARY not in repr(clean)
    assert "***" in repr(clean)


def test_keys_of_a_known_shape_are_found_in_any_text() -> None:
    assert "abcdef" not in scrub_text("wrong key sk-proj-abcdefabcdefabcdefabcdef123 given")


def test_known_values_are_found_in_any_place() -> None:
    text = f"the key {CANARY} is unknown"
    assert scrub({"a": [text], text: 1}, [f"Bearer {CANARY}"]) == {
        "a": ["the key *** is unknown"],
        "the key *** is unknown": 1,
    }
    assert scrub("route EMPTY", ["EMPTY"]) == "route EMPTY", "short values are no secrets"


def test_what_is_no_secret_stays() -> None:
    kept = {
        "prompt_tokens": 7,
        "token_source": "usage",
        "header_names": ["authorization"],
        "auth": "key",
        "max_tokens": 100,
        "url": "http://host:8000/v1?api-version=2",
        "canonical": "p25 speed >= 80 tok/s, p95 ttft <= 5 s",
        "reason": "p25 speed = 82.7 tok/s, 16.1 % [10.7 %, 23.5 %] slower than 80 tok/s",
        "notes": {"stale_connection": 3},
        "flags": [True, None, 1.5],
    }
    assert scrub(kept) == kept
    assert not any(map(is_secret_name, ["tokens_per_event", "keys", "monkey", "authority", "", "output_tokens"]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_scrubbing_any_json_keeps_its_shape_and_settles(value: Any) -> None:
    once = scrub(value)
    assert scrub(once) == once
    assert type(once) is type(value)


def test_a_canary_is_in_no_file(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", secrets=[f"Bearer {CANARY}"])
    writer.write_manifest(
        {
            **manifest(["80tps"]),
            "endpoint": {"url": f"https://u:{CANARY}@host/v1?token={CANARY}", "headers": {"X-Key": CANARY}},
            "deployment": {"command": f"serve --api-key {CANARY}"},
        }
    )
    events, _ = search_journal(levels=(1,))
    events[-1]["warnings"] = [f"server said: unknown key {CANARY}"]
    for event in events:
        writer.journal(event)
    writer.add([record(1, outcome="failed", error_class="auth", error=f"bad key {CANARY}", notes=CANARY)])
    writer.flush()
    stream = tmp_path / "run" / "records.arrows"
    assert CANARY.encode() not in stream.read_bytes()
    assert read_run(tmp_path / "run").records(["error"]).column("error").to_pylist() == ["bad key ***"]
    writer.journal({"event": "run_failed", "error": f"401 for {CANARY}"})
    writer.finish()
    for path in (tmp_path / "run").iterdir():
        assert CANARY.encode() not in path.read_bytes(), path
    table = read_run(tmp_path / "run").records()
    assert CANARY not in repr(table.to_pylist())
