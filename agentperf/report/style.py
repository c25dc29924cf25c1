"""How figures look: a palette that the colour-blind tell apart and greyscale keeps, marks that differ in shape."""

from typing import Any, Final

INK: Final = "#1b1f24"
QUIET: Final = "#66707b"
FAINT: Final = "#d9dee3"
SPEED: Final = "#0b5394"
BAND: Final = "#7fb2e5"
TTFT_P50: Final = "#7a5195"
TTFT_P95: Final = "#4b2e63"
LIMIT: Final = "#b03a00"
LIMIT_DASH: Final = (0, (5, 3))
BRACKET: Final = "#f2c14e"

STATUS_STYLE: Final[dict[str, dict[str, Any]]] = {
    # After Okabe and Ito: green, vermilion, amber; the shapes carry the meaning without them.
    "pass": {"marker": "o", "markersize": 8.5, "markerfacecolor": "#009e73", "markeredgecolor": "white"},
    "fail": {"marker": "X", "markersize": 10, "markerfacecolor": "#d55e00", "markeredgecolor": "white"},
    "inconclusive": {"marker": "D", "markersize": 7, "markerfacecolor": "white", "markeredgecolor": "#c98500"},
    "invalid": {"marker": "v", "markersize": 8.5, "markerfacecolor": "white", "markeredgecolor": "#66707b"},
    "none": {"marker": "o", "markersize": 6.5, "markerfacecolor": SPEED, "markeredgecolor": "white"},
}
STATUS_WORDS: Final = {
    "pass": "meets the SLO",
    "fail": "misses the SLO",
    "inconclusive": "inconclusive",
    "invalid": "invalid measurement",
}

RC: Final[dict[str, Any]] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "xtick.major.size": 4,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 160,
    # Text stays text: small files, searchable, and the reader's own fonts.
    "svg.fonttype": "none",
    # Ids are derived from this, not from chance: the same run gives the same bytes.
    "svg.hashsalt": "agentperf",
    "path.simplify": False,
}
