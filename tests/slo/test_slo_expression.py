"""The SLO language: what it means, what it refuses, and that nothing but SloError comes out."""

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentperf.errors import SloError
from agentperf.paths import data_dir
from agentperf.slo.expression import AA_CEILINGS, parse
from agentperf.slo.model import METRICS, RATES, Slo, Term, quantity


def speed(limit, stat="p25"):
    return Term("speed", stat, ">=", limit)


def ttft(limit, stat="p95", **turns):
    return Term("ttft", stat, "<=", limit, **turns)


def errors(limit=0.01):
    return Term("errors", "share", "<=", limit)


@pytest.mark.parametrize(
    ("text", "ceiling"),
    [
        ("5tps", 10.0),
        ("20tps", 10.0),
        ("59.9 tps", 10.0),
        ("60tps", 5.0),
        ("80tps", 5.0),
        ("80 tok/s", 5.0),
        ("  80 TPS ", 5.0),
        ("179 tps", 5.0),
        ("180tps", 3.0),
        ("2000tokens/s", 3.0),
    ],
)
def test_a_bare_speed_takes_the_ceiling_of_the_published_tier_at_or_below_it(text, ceiling):
    slo = parse(text)
    assert slo.terms == (speed(slo.terms[0].limit), ttft(ceiling), errors())
    assert text.strip().startswith(str(slo.terms[0].limit).removesuffix(".0"))


def test_what_was_filled_in_is_echoed():
    echo = parse("80tps").echo()
    assert echo.startswith("80tps = p25 speed >= 80 tok/s, p95 ttft <= 5 s, errors <= 1 % (")
    assert "aa/deepseek-v4-pro/2" in echo
    assert "errors <= 1 % added by default" in echo
    whole = parse("p25 speed >= 80, p95 ttft <= 2s, errors <= 1%")
    assert whole.notes == ()
    assert whole.echo() == "p25 speed >= 80 tok/s, p95 ttft <= 2 s, errors <= 1 %"


def test_ceilings_are_those_of_the_tier_file():
    document = tomllib.loads((data_dir("slo_tiers") / "deepseek-v4-pro.toml").read_text())
    published = {(*(t.limit for t in parse(e["slo"]).terms[:2]), e["number"]) for e in document["tier"]}
    assert published == set(AA_CEILINGS)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("p25 speed >= 80, p95 ttft <= 2s, errors <= 1%", (speed(80), ttft(2), errors())),
        ("P25SPEED>=80TPS,p95ttft<=2S", None),
        ("p25 speed>=80 tok/s ,p95 ttft<=2000ms", (speed(80), ttft(2), errors())),
        ("p25 speed ≥ 80,p95 ttft ≤ 2s", (speed(80), ttft(2), errors())),
        ("p50 itl <= 40ms", (Term("itl", "p50", "<=", 0.04), errors())),
        ("p99 ttfo <= 1.5 s, errors <= 0", (Term("ttfo", "p99", "<=", 1.5), errors(0.0))),
        ("p99.90 ttft <= 3s", (ttft(3, "p99.9"), errors())),
        ("p05 e2e_speed >= 12.5", (Term("e2e_speed", "p5", ">=", 12.5), errors())),
        ("p95 ttft@turn>=2 <= 2s", (ttft(2, min_turn=2), errors())),
        ("p95 ttft @ turn <= 1 <= 9s", (ttft(9, max_turn=1), errors())),
        ("p95 ttft@turn<=9@turn>=2 <= 2s", (ttft(2, min_turn=2, max_turn=9), errors())),
        ("errors <= 0.5 %", (errors(0.005),)),
        ("80tps, p90 ttft <= 2s", (speed(80), ttft(2, "p90"), errors())),
        ("80tps, errors <= 3 %", (speed(80), ttft(5), errors(0.03))),
        ("p25 speed >= 80, p50 speed >= 100", (speed(80), speed(100, "p50"), errors())),
        ("p95 ttft <= 9s, p95 ttft@turn>=2 <= 2s", (ttft(9), ttft(2, min_turn=2), errors())),
    ],
)
def test_forms(text, terms):
    if terms is None:
        with pytest.raises(SloError):
            parse(text)
    else:
        assert parse(text).terms == terms


def test_share_that_a_percentile_allows():
    assert speed(80).allowed_share == 0.25
    assert ttft(2).allowed_share == 0.05
    assert ttft(2, "p99.9").allowed_share == 0.001
    assert errors(0.02).allowed_share == 0.02
    assert ttft(2, "p99.9").percent == 99.9
    with pytest.raises(ValueError, match="no percentile"):
        _ = errors().percent


def test_the_wrong_end_of_the_distribution_is_said():
    assert "p5 meant" in parse("p95 speed >= 10").notes[0]
    assert "p75 meant" in parse("p25 ttft <= 10s").notes[0]
    assert len(parse("p50 speed >= 10").notes) == 1


@pytest.mark.parametrize(
    ("text", "fault", "words"),
    [
        ("p95 tfft <= 2s", "tfft", "did you mean ttft?"),
        ("p25 sped >= 80", "sped", "did you mean speed?"),
        ("p95 tpot <= 40ms", "tpot", "did you mean itl?"),
        ("eror <= 1 %", "eror", "did you mean errors?"),
        ("p25 speed <= 80", "<=", "expected >="),
        ("p25 speed >= 80, p95 ttft >= 2s", ">= 2s", "ttft >= is no promise"),
        ("errors >= 1 %", ">=", "expected <="),
        ("p95 ttft < 2s", "<", "did you mean <=?"),
        ("p95 ttft <= 2", None, "expected s or ms"),
        ("p95 ttft <= 2 min", "min", "expected s or ms"),
        ("p95 ttft <= 80 tps", "tps", "expected s or ms"),
        ("p25 speed >= 80 ms", "ms", "no unit of a speed"),
        ("p25 speed >= eighty", "eighty", "no number"),
        ("p25 speed >= 0", "0", "out of range"),
        ("errors <= 1", None, "expected % (1 %)"),
        ("errors <= 100 %", "100", "promises nothing"),
        ("errors <= 0.00000001 %", "0.00000001", "too small"),
        ("p95 errors <= 1 %", "errors", "takes no percentile"),
        ("ttft <= 2s", "ttft", "expected one before it, such as p95 ttft"),
        ("speed >= 2", "speed", "p25 speed"),
        ("mean ttft <= 2s", "mean", "expected a percentile"),
        ("p100 ttft <= 2s", "p100", "no percentile"),
        ("p0 speed >= 2", "p0", "no percentile"),
        ("p25 speed >= 80 p95 ttft <= 2s", "p95", "unit of a speed"),
        ("p95 ttft <= 2s errors <= 1 %", "errors", "expected a comma"),
        ("80tps,", None, "a term is missing"),
        ("80tps, 90tps", "90tps", "bounded twice"),
        ("errors<=1%,errors<=2%", "errors<=2%", "bounded twice"),
        ("80", None, "80tps"),
        ("", None, "empty"),
        ("   ", None, "empty"),
        ("p95 ttft@round>=2 <= 2s", "round", "expected turn"),
        ("p95 ttft@turn>=0 <= 2s", "0", "whole number from 1"),
        ("p95 ttft@turn>=5@turn<=2 <= 2s", "@turn>=5@turn<=2", "no turn fits"),
        ("p95 ttft@turn>=5@turn>=2 <= 2s", "@turn>=2", "two bounds"),
        ("p95 ttft@turn>=2", None, "comparison is missing"),
    ],
)
def test_a_fault_gets_a_caret_and_what_was_expected(text, fault, words):
    with pytest.raises(SloError) as caught:
        parse(text)
    cause, shown, caret, expected = str(caught.value).split("\n")
    assert cause.startswith("bad SLO: ")
    assert shown == f"  {text}"
    assert words in f"{cause} {expected}"
    column = caret.index("^") - 2
    marked = (text + " ")[column : column + caret.count("^")]
    if fault is None:
        assert column >= len(text.rstrip())
        assert marked.strip() == ""
    else:
        assert marked.startswith(fault.split()[0]), (marked, fault)


def test_a_long_text_is_cut_around_the_fault():
    with pytest.raises(SloError) as caught:
        parse("p25 speed >= 80 " + " " * 500 + "oops" + "x" * 500)
    shown, caret = str(caught.value).split("\n")[1:3]
    assert len(shown) < 110
    assert len(caret) < 110
    assert shown[caret.index("^") :].startswith("oops")


def test_equality_is_that_of_the_terms():
    assert parse("80tps") == parse("p25 speed>=80,p95 ttft<=5s, errors<=1%")
    assert parse("80tps") != parse("81tps")
    assert len({parse("80tps"), parse(" 80 tps")}) == 1
    assert parse(" 80   tps").name == "80 tps"


LIMITS = st.floats(min_value=1e-9, max_value=1e9, allow_nan=False)
PERCENTILES = st.one_of(
    st.integers(1, 99).map(lambda n: f"p{n}"), st.sampled_from(["p99.9", "p0.1", "p12.5", "p99.999999"])
)


@st.composite
def percentile_terms(draw):
    metric = draw(st.sampled_from(METRICS[:-1]))
    low = draw(st.one_of(st.none(), st.integers(1, 50)))
    high = draw(st.one_of(st.none(), st.integers(low or 1, 99)))
    return Term(metric, draw(PERCENTILES), ">=" if metric in RATES else "<=", draw(LIMITS), low, high)


@st.composite
def slos(draw):
    terms = draw(st.lists(percentile_terms(), max_size=4, unique_by=lambda t: t.subject))
    share = draw(st.one_of(st.just(0.0), st.floats(min_value=1e-9, max_value=0.999, allow_nan=False)))
    terms.insert(draw(st.integers(0, len(terms))), Term("errors", "share", "<=", share))
    return Slo("made", tuple(terms))


@given(slos())
def test_canonical_text_reads_back_as_the_same_slo(slo):
    again = parse(str(slo))
    assert again == slo
    assert str(again) == str(slo)
    assert again.notes == () or "meant" in " ".join(again.notes)


SCRAPS = [
    *METRICS,
    "p25",
    "p95",
    "p99.9",
    ">=",
    "<=",
    "80",
    "2s",
    "40 ms",
    "1 %",
    "tps",
    "tok/s",
    ",",
    " ",
    "@turn",
    "é",
]
TEXTS = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(SCRAPS), max_size=12).map(" ".join))


@given(TEXTS)
@example("８０tps")
@example("80ţps")
@example("p95 ttft <= 2\u017f")  # a long s folds to s, and is none
@example("1" * 500 + "tps")
@example("." * 50)
@example("p95 ttft\n<=\t2 s")
@example("80tps\x00")
@example("errors <= 99.999999999999999999999 %")
@example("errors <= 0.000000000000000000000000000000000001 %")
@example("p95 ttft <= 0.0000009999999999999999999999 ms")
def test_any_text_gives_an_slo_or_an_slo_error(text):
    try:
        slo = parse(text)
    except SloError as error:
        lines = str(error).split("\n")
        assert len(lines) == 4
        assert "^" in lines[2]
        return
    assert parse(str(slo)) == slo
    assert slo.terms[-1].metric == "errors" or any(t.metric == "errors" for t in slo.terms)


@given(TEXTS, st.sampled_from(["p25 speed >= 80", "80tps", "errors <= 1 %"]))
def test_text_around_something_right_is_handled_too(text, right):
    for whole in (f"{right},{text}", f"{text},{right}", f"{right} {text}"):
        try:
            parse(whole)
        except SloError:
            continue


def test_quantities_are_written_in_the_unit_that_reads_best():
    assert quantity("ttft", 0.04) == "40 ms"
    assert quantity("ttft", 1.0) == "1 s"
    assert quantity("errors", 0.07) == "7 %"
    assert quantity("speed", 80.0) == "80 tok/s"
    assert quantity("speed", 1e9) == "1000000000 tok/s"
