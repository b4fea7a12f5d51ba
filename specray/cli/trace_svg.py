"""A timeline as a picture: what target, buffer and draft did when, and what travelled."""

from collections.abc import Iterable, Iterator, Sequence

from specray.cli.travels import Event, Travel, travels
from specray.types import OWN_SOURCES

_WIDTH, _LEFT, _RIGHT, _HEIGHT = 960, 76, 14, 300
_TARGET, _BUFFER, _DRAFT, _AXIS = 40, 118, 206, 262  # tops of the lanes
_BAR = 34
_CHARACTER = 7.0  # most that one of the labels' takes, on average
_BARS = {"verify": (_TARGET, "t"), "answer": (_DRAFT, "d"), "draft ahead": (_DRAFT, "a")}
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#16202c}.s{font-size:11px;fill:#556273}"
    ".t{fill:#cfe5ff;stroke:#0b5cad}.d{fill:#f2b36b;stroke:#8f4700}.a{fill:#ffe1b8;stroke:#8f4700}"
    "line{stroke:#7a8796}.up{stroke:#0b5cad;stroke-width:1.5}.down{stroke:#b96a15;opacity:.7}"
    "circle{fill:#b96a15}.use{stroke:#0b5cad;stroke-dasharray:3 2}"
    "@media(prefers-color-scheme:dark){text{fill:#e7edf4}.s{fill:#a3b1c1}"
    ".t{fill:#133a66;stroke:#7cb8ff}.d{fill:#8f4700;stroke:#ffb65c}.a{fill:#583305;stroke:#ffb65c}"
    ".up,.use{stroke:#7cb8ff}.down{stroke:#ffb65c}circle{fill:#ffb65c}}"
)


def picture(events: Sequence[Event], begin_us: float, end_us: float) -> str:
    """An SVG of what happened in a span of time.

    Args:
        events: of a target and a draft, in the order of time; best of a single request (`only`).
        begin_us: on their clock.
        end_us: likewise.
    """
    drawing = _Drawing(begin_us, end_us)
    shapes = [
        *(shape for lane in _lanes() for shape in lane),
        *drawing.arrows(travels(events)),
        *(shape for event in events for shape in drawing.event(event)),
        *drawing.uses(events),
        *drawing.axis(),
    ]
    title = "A request's verifications, and what its draft sent ahead meanwhile"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}"><style>{_STYLE}</style>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _lanes() -> Iterator[tuple[str, ...]]:
    names = {"target": _TARGET + 21, "buffer": _BUFFER + 5, "draft": _DRAFT + 21}
    for name, y in names.items():
        yield (f'<text x="8" y="{y}">{name}</text>',)
    yield (f'<line x1="{_LEFT}" y1="{_BUFFER}" x2="{_WIDTH - _RIGHT}" y2="{_BUFFER}"/>',)


def is_its_own(verification: Event) -> bool:
    """Whether all that it verified is the target's own."""
    sources = {source for source in verification["args"].get("sources", ()) if source}
    return bool(sources) and OWN_SOURCES.issuperset(sources)


def _label(verification: Event, width: float) -> str:
    """What is said of it in so much room, in pixels; may be nothing."""
    depth = f"depth {', '.join(map(str, verification['args']['depths']))}"
    own = ", its own" if is_its_own(verification) else ""
    texts = (f"verify, {depth}{own}", f"{depth}{own}", depth, "")
    return next(text for text in texts if not text or len(text) * _CHARACTER + 12 <= width)


class _Drawing:
    """From times to places."""

    def __init__(self, begin_us: float, end_us: float) -> None:
        self._begin_us, self._end_us = begin_us, end_us

    def arrows(self, travelled: Iterable[Travel]) -> Iterator[str]:
        for kind, _, _, left_us, arrived_us in travelled:
            if not (self._has(left_us) and self._has(arrived_us)):
                continue
            is_up = kind == "commit"
            ends = (_TARGET + _BAR, _DRAFT) if is_up else (_DRAFT, _BUFFER)
            yield self._line("up" if is_up else "down", left_us, ends[0], arrived_us, ends[1])
            if not is_up:
                yield f'<circle cx="{self._x(arrived_us):.1f}" cy="{_BUFFER}" r="2.5"/>'

    def event(self, event: Event) -> Iterator[str]:
        bar = _BARS.get(event["name"])
        if bar is None or event["ts"] + event["dur"] < self._begin_us or event["ts"] > self._end_us:
            return
        top, kind = bar
        left = self._x(max(event["ts"], self._begin_us))
        width = max(0.8, self._x(min(event["ts"] + event["dur"], self._end_us)) - left)
        yield (
            f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{_BAR}" rx="2"/>'
        )
        if event["name"] == "verify" and (label := _label(event, width)):
            yield f'<text x="{left + 6:.1f}" y="{top + 21}">{label}</text>'

    def uses(self, events: Sequence[Event]) -> Iterator[str]:
        """From the buffer into each verification that found something there."""
        for event in events:
            is_begun = event["name"] == "verify" and self._has(event["ts"])
            if is_begun and any(event["args"]["depths"]) and not is_its_own(event):
                yield self._line("use", event["ts"], _BUFFER, event["ts"], _TARGET + _BAR)
            if event["name"] == "commit sent" and self._has(event["ts"]):
                x, added = self._x(event["ts"]), event["args"]["added"]
                anchor = "end" if x > _WIDTH - 100 else "start"
                place = f'x="{x:.1f}" y="{_TARGET - 8}" text-anchor="{anchor}"'
                yield f'<text class="s" {place}>+{added}</text>'

    def axis(self) -> Iterator[str]:
        steps_ms = (1, 2, 5, 10, 20, 50, 100, 1000)
        step_ms = next((s for s in steps_ms if self._span_ms / s <= 15), 10_000)
        yield self._line("", self._begin_us, _AXIS, self._end_us, _AXIS)
        for ms in range(0, int(self._span_ms) + 1, step_ms):
            x = self._x(self._begin_us + 1e3 * ms)
            yield f'<line x1="{x:.1f}" y1="{_AXIS}" x2="{x:.1f}" y2="{_AXIS + 5}"/>'
            yield f'<text class="s" x="{x:.1f}" y="{_AXIS + 19}" text-anchor="middle">{ms}</text>'
        yield f'<text class="s" x="8" y="{_AXIS + 19}">ms</text>'

    @property
    def _span_ms(self) -> float:
        return (self._end_us - self._begin_us) / 1e3

    def _has(self, us: float) -> bool:
        return self._begin_us <= us <= self._end_us

    def _x(self, us: float) -> float:
        share = (us - self._begin_us) / max(1.0, self._end_us - self._begin_us)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _line(self, kind: str, x1_us: float, y1: float, x2_us: float, y2: float) -> str:
        return (
            f'<line class="{kind}" x1="{self._x(x1_us):.1f}" y1="{y1}" '
            f'x2="{self._x(x2_us):.1f}" y2="{y2}"/>'
        )
