"""Figures as SVG or PNG, drawn with matplotlib where it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specray.errors import InvalidConfigError

_FORMATS = (".svg", ".png", ".pdf")
COLOURS = {
    "off": "#7f7f7f",
    "specray": "#d62728",
    "table": "#9467bd",
    "depth 1": "#9ecae1",
    "depth 3": "#4292c6",
    "depth 5": "#2171b5",
    "depth 8": "#08306b",
}


def require_matplotlib(option: str = "--plot") -> None:
    """See, before hours of work, that the work can be drawn.

    Raises:
        InvalidConfigError: it is not installed; the message says how to.
    """
    try:
        import matplotlib  # noqa: F401 - whether it can be imported is the question
    except ImportError:
        raise InvalidConfigError(
            f"{option}: matplotlib is not installed; `pip install 'specray[plots]'`, or leave "
            f"{option} out and take the numbers from the JSON"
        ) from None


def check_format(path: Path) -> None:
    """See that the file's name says how to write it.

    Raises:
        InvalidConfigError: naming the formats.
    """
    if path.suffix not in _FORMATS:
        raise InvalidConfigError(f"--plot: {path} must end in one of {', '.join(_FORMATS)}")


@contextmanager
def figure(path: Path, rows: int, columns: int, title: str) -> Iterator[Any]:
    """Axes to draw on, in an array of rows and columns; written to the file at the end."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, and equal numbers make equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "specray", "font.size": 9}):
        drawn = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
        drawn.suptitle(title)
        yield drawn.subplots(rows, columns, squeeze=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def label(axes: Any, title: str, x: str, y: str) -> None:
    """What an axis shows, and a grid to read it by."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
