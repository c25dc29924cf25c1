"""Profiles: the formula of a step, the bundled ones, errors, and the fit to the published table."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_profiles import plain

from agentperf.errors import UsageError
from agentperf.sim.engine import Engine, SimRequest
from agentperf.sim.profile import bundled_profiles, load_profile, parse_profile
from benchmarks.fit_glm_profile import DECODE, LEVELS, PREFILL, fit


def test_step_time_golden() -> None:
    profile = plain(
        step_fixed_s=0.002,
        step_per_sequence_s=0.0001,
        step_experts_s=0.004,
        expert_share=0.5,
        step_per_kv_token_s=1e-7,
        prefill_tokens_per_s=5000.0,
    )
    # 2 ms + 3 x 0.1 ms + 4 ms x (1 - 0.5^3) + 10,000 x 0.1 us + 500 / 5,000 s
    assert profile.step_s(3, 10_000, 500) == pytest.approx(0.002 + 0.0003 + 0.0035 + 0.001 + 0.1)
    assert profile.decode_tokens_per_s(3, 100) == pytest.approx(3 / (0.002 + 0.0003 + 0.0035 + 0.00003))


def test_tokens_per_step_golden() -> None:
    assert plain().tokens_per_step() == 1.0
    assert plain(draft_tokens=3, draft_acceptance=0.5).tokens_per_step() == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert plain(draft_tokens=3, draft_acceptance=1.0).tokens_per_step() == 4.0


@given(
    n=st.integers(0, 500),
    kv=st.integers(0, 10**7),
    q=st.integers(0, 10**5),
    more=st.tuples(st.integers(0, 50), st.integers(0, 10**5), st.integers(0, 10**4)),
    c=st.floats(0, 0.01),
    p=st.floats(0, 1),
)
def test_step_time_is_monotone(n: int, kv: int, q: int, more: tuple[int, int, int], c: float, p: float) -> None:
    profile = plain(step_experts_s=c, expert_share=p, step_per_kv_token_s=1e-8)
    assert profile.step_s(n + more[0], kv + more[1], q + more[2]) >= profile.step_s(n, kv, q) * (1 - 1e-12)


def test_bundled_profiles_load_and_name_themselves() -> None:
    names = bundled_profiles()
    assert {"demo", "glm-5.3-8xh200"} <= set(names)
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source


@pytest.mark.parametrize(("level", "published"), list(zip(LEVELS, DECODE, strict=True)))
def test_glm_decode_column_within_6_percent(level: int, published: float) -> None:
    profile = load_profile("glm-5.3-8xh200")
    assert profile.decode_tokens_per_s(level) == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(("level", "published"), [(1, DECODE[0]), (16, DECODE[4]), (128, DECODE[7])])
def test_glm_engine_makes_the_decode_column(level: int, published: float) -> None:
    """The engine itself, jitter included, with `level` sequences that always decode."""
    engine = Engine(load_profile("glm-5.3-8xh200"), seed=5)
    for index in range(level):
        engine.submit(SimRequest(str(index), 10, 2000), 0.0)
    tokens, first, last = 0, 0.0, 0.0
    for step in range(600):
        result = engine.advance()
        if result is None or step < 100:
            first = result.end_s if result else 0.0
            continue
        tokens += sum(e.tokens for e in result.emissions)
        last = result.end_s
    assert tokens / (last - first) == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(("level", "published"), list(zip(LEVELS, PREFILL, strict=True)))
def test_glm_prefill_column_within_6_percent(level: int, published: float) -> None:
    """`level` long prompts at once, from the first step to the last prompt's end."""
    engine = Engine(load_profile("glm-5.3-8xh200"))
    for index in range(level):
        engine.submit(SimRequest(str(index), 8192, 1), 0.0)
    tokens, end_s = 0, 0.0
    start_s = engine.next_s() or 0.0
    while engine.next_s() is not None:
        result = engine.advance()
        if result is not None:
            tokens, end_s = tokens + result.prefill_tokens, result.end_s
    assert tokens == level * 8192
    assert tokens / (end_s - start_s) == pytest.approx(published, rel=0.06)


def test_fit_script_finds_the_bundled_parameters() -> None:
    parameters, worst = fit()
    assert worst <= 0.06
    profile = load_profile("glm-5.3-8xh200")
    own = [profile.step_fixed_s, profile.step_per_sequence_s, profile.step_experts_s, profile.expert_share]
    assert own == pytest.approx(list(parameters), rel=0.02)
    assert isinstance(parameters, np.ndarray)


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("name = 1", "name"),
        ("not toml", "cannot be used"),
        ('surprise = "x"', "surprise"),
        ("max_step_tokens = 10", "max_step_tokens"),
        ("kv_pool_tokens = 4096", "kv_pool_tokens"),
        ("jitter = -1.0", "jitter"),
        ("prefill_tokens_per_s = 0.0", "prefill_tokens_per_s"),
        ("expert_share = 1.5", "expert_share"),
    ],
)
def test_bad_profile_names_the_field(text: str, needle: str) -> None:
    fields = msgspec.to_builtins(plain())
    key = text.partition(" =")[0]
    good = "\n".join(f"{k} = {_toml(v)}" for k, v in fields.items() if v is not None and k != key)
    with pytest.raises(UsageError, match=needle) as caught:
        parse_profile(f"{good}\n{text}\n".encode(), "mine.toml")
    assert "mine.toml" in str(caught.value)
    assert "\n" not in caught.value.message


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else msgspec.json.encode(value).decode()


def test_profile_file_round_trip(tmp_path: Path) -> None:
    profile = plain(jitter=0.5, draft_tokens=2)
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(f"{k} = {_toml(v)}" for k, v in msgspec.to_builtins(profile).items() if v is not None))
    assert load_profile(path) == profile
    assert load_profile(str(path)) == profile


def test_unknown_profile_lists_the_bundled_ones() -> None:
    with pytest.raises(UsageError, match=r"glm-5\.3-8xh200"):
        load_profile("no-such-profile")
