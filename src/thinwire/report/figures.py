"""What does the run look like?  Loss curves, clusters, the loss matrix and the scores, each one matplotlib ``Figure``.

matplotlib is an optional extra and is imported inside the functions; pyplot and its global state are never touched.
Text from a run folder is never read as a formula, and characters the font cannot draw are left out of the picture (the
page's tables show them). Colours are Okabe and Ito's and Tol's, safe for colour-blind readers, on a white ground.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.base.errors import missing_extra
from thinwire.base.files import atomic_write
from thinwire.report.facts import baseline_name, count_of, format_loss
from thinwire.report.records import Clusters, LossMatrix, Score

INK, QUIET, GRID = "#1b1b1b", "#5c5c5c", "#e3e3e3"
BLUE, VERMILLION = "#0072B2", "#D55E00"
WIDTH_INCHES = 4.2
FONT_POINTS = 8.5
PNG_DOTS_PER_INCH = 150
MAX_ANNOTATED = 10
"""A loss matrix with more experts or clusters has no room for numbers."""
MAX_TERM_ROWS = 16
TERM_CHARACTERS = 58


def new_figure(height_inches: float, *, width_inches: float = WIDTH_INCHES) -> Any:
    """An empty figure.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", extra="plots", needed_for="a report") from error
    return Figure(figsize=(width_inches, height_inches), layout="constrained", facecolor="white")


def save_png(figure: Any, path: Path) -> None:
    """150 dots per inch; whole or absent."""
    atomic_write(path, lambda temporary: figure.savefig(temporary, format="png", dpi=PNG_DOTS_PER_INCH))


def style_axes(axes: Any) -> None:
    """Two quiet spines, a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(labelsize=FONT_POINTS, colors=INK, color=QUIET, length=3)
    axes.set_axisbelow(True)
    axes.grid(color=GRID, linewidth=0.8)


def label(text: str, *, limit: int = 40) -> str:
    """Text from a run folder as a figure can show it: one line, only characters of the font, shortened."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties(family=["DejaVu Sans"]))).get_charmap()
    shown = "".join(character for character in text if ord(character) in known and ord(character) >= 32)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def clusters_figure(clusters: Clusters) -> Any:
    """Training windows per cluster, with each cluster's first terms where there is room for them."""
    if len(clusters.sizes) <= MAX_TERM_ROWS:
        return _clusters_with_terms(clusters)
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.grid(visible=False, axis="x")
    edges = [cluster - 0.5 for cluster in range(len(clusters.sizes) + 1)]
    axes.stairs(clusters.sizes, edges, fill=True, color=BLUE)
    axes.axhline(sum(clusters.sizes) / len(clusters.sizes), color=INK, linestyle="--", linewidth=1)
    axes.set_xlabel("cluster", fontsize=FONT_POINTS)
    axes.set_ylabel("training windows", fontsize=FONT_POINTS)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.01)
    return figure


def _clusters_with_terms(clusters: Clusters) -> Any:
    count = len(clusters.sizes)
    figure = new_figure(0.75 + 0.46 * count)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.barh(range(count), clusters.sizes, height=0.36, color=BLUE)
    share = sum(clusters.sizes) / count
    largest = max(*clusters.sizes, 1)
    for cluster, (size, fraction) in enumerate(zip(clusters.sizes, clusters.fractions, strict=True)):
        place = (max(size, share) + 0.02 * largest, cluster)
        axes.text(*place, f"{size:,} ({fraction:.1%})", fontsize=FONT_POINTS, va="center", color=INK)
        terms = _terms_line(clusters.top_terms[cluster])
        axes.plot((share, share), (cluster - 0.22, cluster + 0.22), color=INK, linewidth=1.6)
        axes.text(
            0.005 * largest,
            cluster - 0.27,
            terms,
            fontsize=FONT_POINTS - 0.5,
            va="bottom",
            color=QUIET,
            parse_math=False,
        )
    axes.set_yticks(range(count), [f"cluster {cluster}" for cluster in range(count)])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(count - 0.6, -0.8)
    axes.set_xlim(0, 1.45 * largest)
    axes.xaxis.set_major_locator(_few_ticks(4))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training windows (upright stroke: an equal share)", fontsize=FONT_POINTS)
    return figure


def _few_ticks(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=count, integer=True)


def _terms_line(terms: Sequence[str]) -> str:
    """As many whole terms as fit on one line."""
    line = ""
    for term in terms:
        drawn = label(term, limit=24)
        longer = f"{line} · {drawn}" if line else drawn
        if len(longer) > TERM_CHARACTERS:
            break
        line = longer if len(drawn) == len(term) or drawn.endswith("…") else line
    return line


def matrix_figure(matrix: LossMatrix) -> Any:
    """Rows are experts, columns clusters; colour is what an expert loses to the best one on that cluster.

    Clusters differ in how hard they are far more than experts differ on one cluster, so colour by the loss itself would
    show only which cluster is hard. The loss itself is written in the cells while there is room.
    """
    best = matrix.best_experts()
    lowest = [matrix.losses[best[cluster]][cluster] for cluster in range(matrix.num_clusters)]
    excess = [[loss - low for loss, low in zip(row, lowest, strict=True)] for row in matrix.losses]
    largest = max(max(row) for row in excess)
    annotated = max(matrix.num_experts, matrix.num_clusters) <= MAX_ANNOTATED
    figure = new_figure(_matrix_height(matrix))
    axes = figure.add_subplot()
    image = axes.imshow(excess, cmap="Blues", vmin=0, vmax=1.25 * largest or 1.0, interpolation="none", aspect="equal")
    _mark_cells(axes, matrix, best)
    if annotated:
        _annotate_cells(axes, matrix, excess)
    _matrix_axes(axes, matrix)
    if largest > 0:
        bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, boundaries=[largest * i / 100 for i in range(101)])
        bar.set_label("above the cluster's best expert\n(nats/byte)", fontsize=FONT_POINTS - 0.5)
        bar.ax.tick_params(labelsize=FONT_POINTS - 1, length=2)
        bar.ax.yaxis.set_major_locator(_decimal_ticks())
        bar.outline.set_visible(False)
    return figure


def _matrix_height(matrix: LossMatrix) -> float:
    shape = matrix.num_experts / matrix.num_clusters
    return min(max(3.0 * shape, 0.6), 7.0) + 0.85


def _decimal_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5)


def _mark_cells(axes: Any, matrix: LossMatrix, best: Sequence[int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    size = max(matrix.num_experts, matrix.num_clusters)
    outline = 1.8 if size <= MAX_ANNOTATED else 0.7
    for own in range(min(matrix.num_experts, matrix.num_clusters)):
        corner = (own - 0.5 + 0.02, own - 0.5 + 0.02)
        axes.add_patch(Rectangle(corner, 0.96, 0.96, fill=False, edgecolor=INK, linewidth=outline))
    dot = 6.0 if size <= 6 else 4.0 if size <= MAX_ANNOTATED else max(1.2, 90 / size)
    up = 0.3 if size <= MAX_ANNOTATED else 0.0
    axes.plot(
        range(matrix.num_clusters), [e - up for e in best], "o", color=VERMILLION, markersize=dot, markeredgewidth=0
    )
    keys = [
        Line2D([], [], marker="s", color="none", markeredgecolor=INK, markersize=8, markerfacecolor="none"),
        Line2D([], [], marker="o", color="none", markerfacecolor=VERMILLION, markeredgewidth=0, markersize=6),
    ]
    names = ["own cluster", "best expert on the cluster"]
    axes.figure.legend(keys, names, loc="outside lower center", ncols=2, frameon=False, fontsize=FONT_POINTS)


def _annotate_cells(axes: Any, matrix: LossMatrix, excess: Sequence[Sequence[float]]) -> None:
    largest = max(max(row) for row in excess)
    size = max(matrix.num_experts, matrix.num_clusters)
    places = 3 if size <= 6 else 2
    points = FONT_POINTS + 0.5 if size <= 6 else FONT_POINTS - 1.5
    for expert, row in enumerate(matrix.losses):
        for cluster, loss in enumerate(row):
            colour = "white" if excess[expert][cluster] > 0.8 * largest > 0 else INK
            axes.text(
                cluster,
                expert + (0.08 if size <= 6 else 0.14),
                f"{loss:.{places}f}",
                ha="center",
                va="center",
                fontsize=points,
                color=colour,
            )


def _matrix_axes(axes: Any, matrix: LossMatrix) -> None:
    size = max(matrix.num_experts, matrix.num_clusters)
    step = 1 if size <= 16 else max(8, size // 8)
    axes.set_xticks(range(0, matrix.num_clusters, step))
    axes.set_yticks(range(0, matrix.num_experts, step))
    axes.tick_params(labelsize=FONT_POINTS, length=0 if step == 1 else 3)
    axes.set_xlabel("held-out windows of cluster", fontsize=FONT_POINTS)
    axes.set_ylabel("expert", fontsize=FONT_POINTS)
    axes.spines[:].set_visible(False)


def scores_figure(score: Score) -> Any:
    """The ensemble with its interval, the seed run's model, the single experts and the baselines on one scale.

    The differences that matter are a few hundredths of a loss near 2, so the scale does not begin at zero and the
    values are points: bars would need a zero.
    """
    rows = _score_rows(score)
    figure = new_figure(0.75 + 0.36 * len(rows))
    axes = figure.add_subplot()
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.axvline(score.loss_nats_per_byte, color=BLUE, linewidth=0.9, linestyle="--")
    for place, (name, losses, written) in enumerate(rows):
        _draw_score_row(axes, place, losses, "single" if "single" in name else name)
        at_right = {"transform": axes.get_yaxis_transform(), "fontsize": FONT_POINTS, "va": "center"}
        axes.text(1.02, place, written, color=INK, **at_right)
    if score.ci95 is not None:
        axes.plot(score.ci95, (0, 0), color=BLUE, linewidth=2.5, marker="|", markersize=9)
    names = [label(name, limit=22) for name, _, _ in rows]
    for text in axes.set_yticks(range(len(rows)), names):
        text.label1.set_parse_math(False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(_decimal_ticks())
    axes.set_xlabel("loss, nats per byte (lower is better)", fontsize=FONT_POINTS)
    return figure


def _score_rows(score: Score) -> list[tuple[str, tuple[float, ...], str]]:
    """(name, losses, the words at the right), top row first."""
    scored = format_loss(score.loss_nats_per_byte)
    if score.ci95 is not None:
        scored += f" [{format_loss(score.ci95.low)}, {format_loss(score.ci95.high)}]"
    rows: list[tuple[str, tuple[float, ...], str]] = [(score.system, (score.loss_nats_per_byte,), scored)]
    if score.seed_loss_nats_per_byte is not None:
        rows.append(("seed run", (score.seed_loss_nats_per_byte,), format_loss(score.seed_loss_nats_per_byte)))
    single = score.single_expert_loss_nats_per_byte
    if single:
        words = (
            format_loss(single[0]) if len(single) == 1 else f"{format_loss(min(single))} to {format_loss(max(single))}"
        )
        rows.append((count_of(len(single), "single expert"), single, words))
    ordered = sorted(score.baselines.items(), key=lambda item: item[1])
    return rows + [(baseline_name(key), (loss,), format_loss(loss)) for key, loss in ordered]


def _draw_score_row(axes: Any, place: int, losses: Sequence[float], name: str) -> None:
    colours = {"ensemble": BLUE, "model": BLUE, "seed run": INK, "single": VERMILLION}
    marker, size = ("|", 11) if name == "single" else ("o", 6)
    edge = 1.4 if len(losses) <= 16 else 0.5
    style = {"linestyle": "none", "marker": marker, "markersize": size, "markeredgewidth": edge if marker == "|" else 0}
    axes.plot(losses, [place] * len(losses), color=colours.get(name, QUIET), **style)
