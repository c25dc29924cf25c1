import msgspec
import pytest
from fake_server import BYTES, SERVERS, FakeServer

from agentperf.trace.io import load
from agentperf.trace.model import SessionTrace, TraceSet
from agentperf.trace.render import RenderedSession, render_tree
from agentperf.trace.sizing import (
    DEFAULT_SIZES,
    TokenSizes,
    calibration_prompts,
    calibration_prompts_for,
    fit,
    typical_text,
)
from agentperf.trace.text import KINDS, filler, seed_of


@pytest.fixture(scope="module")
def coding() -> TraceSet:
    return load("coding-v1")


def calibrated(server: FakeServer, trees: list[list[SessionTrace]], trace_set: TraceSet) -> TokenSizes:
    prompts = calibration_prompts_for(trees, trace_set.blobs)
    return fit(prompts, {p.name: server.count(p.messages, p.tools) for p in prompts})


def prompt_at(session: RenderedSession, index: int) -> list[dict]:
    messages: list[dict] = []
    for turn in session.turns[: index + 1]:
        messages = [*messages[: turn.keep_messages], *turn.new_messages]
    return messages


def near(trace_set: TraceSet, tokens: int, languages: set[str]) -> list[tuple[list[SessionTrace], int]]:
    """For each language a tree and the turn of its root whose prompt is nearest to `tokens`."""
    best: dict[str, tuple[int, list[SessionTrace], int]] = {}
    for tree in trace_set.trees():
        root = tree[0]
        for r in root.requests:
            gap = abs(r.input_tokens - tokens)
            if root.session.language in languages and gap < best.get(root.session.language, (10**9,))[0]:
                best[root.session.language] = (gap, tree, r.index)
    return [(tree, index) for _, tree, index in best.values()]


@pytest.mark.parametrize("name", SERVERS)
def test_a_prompt_of_27000_tokens_has_27000(name: str, coding: TraceSet) -> None:
    server = SERVERS[name]
    cases = near(coding, 27_000, {"python", "typescript", "go", "rust", "kotlin", "shell"})
    assert len(cases) == 6
    sizes = calibrated(server, [tree for tree, _ in cases], coding)
    assert sizes.source == "calibrated"
    for tree, index in cases:
        session = render_tree(tree[:1], coding.blobs, sizes, coding.header).sessions[0]
        target = tree[0].requests[index].input_tokens
        assert abs(target - 27_000) < 3000
        counted = server.count(prompt_at(session, index), session.tools)
        assert abs(counted / target - 1) < 0.02, (tree[0].session.language, counted, target)
        assert abs(session.turns[index].input_tokens - target) <= 1


@pytest.mark.parametrize("name", SERVERS)
def test_short_prompts_and_first_turns(name: str) -> None:
    smoke = load("smoke")
    server = SERVERS[name]
    sizes = calibrated(server, smoke.trees(), smoke)
    errors = []
    for tree in smoke.trees():
        for session in render_tree(tree, smoke.blobs, sizes, smoke.header).sessions:
            for turn in session.turns:
                counted = server.count(prompt_at(session, turn.index), session.tools)
                errors.append(counted / turn.input_tokens - 1)
    assert max(map(abs, errors)) < 0.05  # of a thousand tokens: one identifier more or less a line
    assert abs(sum(errors) / len(errors)) < 0.01


def test_fit_finds_what_a_server_that_is_truly_linear_charges() -> None:
    """Bytes as tokens: every figure is known."""
    server = FakeServer(BYTES, frame="<|start|>{role:9}{text}<|end|>", open_answer="<|start|>assistant", calls="json")
    tools = [{"type": "function", "function": {"name": "bash", "description": "x", "parameters": {"type": "object"}}}]
    prompts = calibration_prompts({"code:go", "log"}, {"sha256:t": tools})
    sizes = fit(prompts, {p.name: server.count(p.messages, p.tools) for p in prompts})
    start = 1 + 1 + 9 + 1  # special token, then its newline, role, end
    assert sizes.cpt("log") == pytest.approx(1, abs=0.02)
    assert sizes.cpt("prose") == pytest.approx(1, abs=0.02)
    assert sizes.overhead["user"] == pytest.approx(start + 1, abs=1)
    assert sizes.tools_tokens["sha256:t"] == len("\nTools:\n") + len(__import__("json").dumps(tools[0]))
    assert sizes.call_overhead == pytest.approx(len('\n<call>{"name": "bash", "arguments": }</call>'), abs=3)
    assert sizes.args_factor == pytest.approx(1.05, abs=0.06)  # \n and \" cost a byte more


def test_what_a_server_drops_costs_nothing() -> None:
    server = SERVERS["short pieces, everything dropped"]
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    prompts = calibration_prompts({"code:go"}, {"sha256:t": tools})
    sizes = fit(prompts, {p.name: server.count(p.messages, p.tools) for p in prompts})
    assert sizes.tools_tokens == {"sha256:t": 0}
    assert sizes.args_factor == 0
    assert abs(sizes.call_overhead) < 1.5
    assert sizes.short_args(500) == 0


def test_counts_that_make_no_sense_give_the_defaults() -> None:
    prompts = calibration_prompts({"log"})
    for constant in (0, 7, 10**6):
        assert fit(prompts, {p.name: constant for p in prompts}) is DEFAULT_SIZES
    odd = {p.name: 20 for p in prompts} | {"text:prose": 10**6}
    assert fit(prompts, odd) is DEFAULT_SIZES
    with pytest.raises(KeyError):
        fit(prompts, {"word": 1})


def test_one_kind_that_makes_no_sense_does_not_spoil_the_others() -> None:
    server = SERVERS["words"]
    prompts = calibration_prompts({"log", "code:go"})
    counts = {p.name: server.count(p.messages, p.tools) for p in prompts} | {"text:log": 3}
    sizes = fit(prompts, counts)
    assert sizes.cpt("log") == DEFAULT_SIZES.cpt("log")
    assert sizes.cpt("code:go") != DEFAULT_SIZES.cpt("code:go")


def test_prompts_are_few_and_small(coding: TraceSet) -> None:
    smoke = load("smoke")
    prompts = calibration_prompts_for(smoke.trees(), smoke.blobs)
    assert len(prompts) <= 18
    assert len({p.name for p in prompts}) == len(prompts)
    for prompt in [*prompts, *calibration_prompts_for(coding.trees(), coding.blobs)]:
        own = SERVERS["words"].count(prompt.messages)
        assert own < 800, prompt.name
    wanted = {f"code:{s.session.language}" for s in coding.sessions}
    names = {p.name for p in calibration_prompts_for(coding.trees(), coding.blobs)}
    assert {f"text:{k}" for k in wanted} <= names
    assert {f"tools:{s.session.tools_ref}" for s in coding.sessions} <= names


def test_calibration_text_is_never_workload_text(coding: TraceSet) -> None:
    texts = [str(p.messages[1]["content"]) for p in calibration_prompts(KINDS) if p.name.startswith("text:")]
    tree = coding.trees()[0]
    session = render_tree(tree[:1], coding.blobs, DEFAULT_SIZES, coding.header).sessions[0]
    sent = "\n".join(str(m["content"]) for t in session.turns for m in t.new_messages)
    assert all(text[:200] not in sent for text in texts)


@pytest.mark.parametrize("kind", KINDS)
def test_typical_text_is_typical(kind: str) -> None:
    """Under a tokenizer that it was not chosen by."""
    server = SERVERS["syllables, long frames"]
    long = filler(kind, seed_of("elsewhere"), 60_000)

    def rate(text: str) -> float:
        return (
            server.count([{"role": "user", "content": text}]) - server.count([{"role": "user", "content": ""}])
        ) / len(text)

    assert rate(typical_text(kind)) == pytest.approx(rate(long), rel=0.035)


def test_kinds_that_were_not_measured_follow_those_that_were() -> None:
    half = {k: DEFAULT_SIZES.cpt(k) / 2 for k in ("prose", "code:go")}
    sizes = msgspec.structs.replace(DEFAULT_SIZES, chars_per_token=half)
    assert sizes.cpt("code:rust") == pytest.approx(DEFAULT_SIZES.cpt("code:rust") / 2)
    assert sizes.cpt("listing") == pytest.approx(DEFAULT_SIZES.cpt("listing") / 2)
    assert sizes.text("prose", 100) == pytest.approx(100 / half["prose"])
    assert 1 / sizes.mean_chars_per_token == pytest.approx((1 / half["prose"] + 1 / half["code:go"]) / 2)


def test_sizes_survive_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(DEFAULT_SIZES), type=TokenSizes) == DEFAULT_SIZES
