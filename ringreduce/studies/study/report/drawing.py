"""Draws a schedule: ranks side by side, rounds from top to bottom, and an arrow for each chunk that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from ringreduce.schedules import Schedule, check
from ringreduce.schedules.collectives import COLLECTIVES
from ringreduce.studies.pages.looks import color
from ringreduce.studies.study.report import svg
from ringreduce.studies.study.report.moves import Move, Value, is_result, moves, states

__all__ = ["draw"]

MARGIN, TOP = 62, 42  # left of the ranks, and above the first row
BOX, GAP, ROW = 18, 26, 66  # the height of a box, the gap between ranks, and the distance between rows
WIDTHS = {1: 64, 2: 40, 3: 30, 4: 27}  # width of a box, by the number of boxes of a rank; 16 for more
BOXES = 5000  # the most boxes: larger pictures are unreadable
SMALL = 11  # font size
INK, GREY = "#111", "#7f858f"


def _tip(move: Move, barrier: bool) -> str:
    what = "a message" if barrier else f"chunk {move.source}"
    then = (
        "waits for it" if barrier else f"{'adds it to' if move.adds else 'puts it into'} chunk {move.target}"
    )
    if move.sender == move.receiver:
        return f"round {move.begins}: rank {move.sender} takes {what} and {then}"
    return f"round {move.begins}: rank {move.sender} sends {what} to rank {move.receiver}, which {then}"


class _Drawing:
    def __init__(self, schedules: Sequence[Schedule], hosts: Sequence[int]) -> None:
        self.schedules, self.hosts = schedules, hosts
        self.collective = schedules[0].collective
        self.barrier = self.collective == "barrier"
        self.sums = self.barrier or COLLECTIVES[self.collective].reduces
        self.held = states(schedules)
        self.rounds = max(len(plan.rounds) for plan in schedules)
        self.boxes = max(len(rank[0]) for rank in self.held)
        self.box = WIDTHS.get(self.boxes, 16)
        self.pitch = max(self.boxes * self.box, 84) + GAP
        width = MARGIN + len(schedules) * self.pitch - GAP + 12
        title = f"{self.collective} on {len(schedules)} ranks in {self.rounds} rounds"
        self.root = svg.picture(width, self.y(self.rounds) + BOX + 10, title)

    def x(self, rank: int, chunk: float) -> float:
        """Returns the left edge of a chunk's box. ``chunk + 0.5`` gives its middle."""
        inset = (self.pitch - GAP - self.boxes * self.box) / 2
        return MARGIN + rank * self.pitch + inset + chunk * self.box

    def y(self, rounds: int) -> float:
        """Returns the upper edge of the boxes after a number of rounds."""
        return TOP + (22 if self.hosts else 0) + rounds * ROW

    def shade_hosts(self) -> None:
        height = self.y(self.rounds) + BOX + 4
        for host in sorted(set(self.hosts)):
            ranks = [rank for rank, each in enumerate(self.hosts) if each == host]
            left, width = MARGIN + ranks[0] * self.pitch - 8, len(ranks) * self.pitch - GAP + 16
            shade: dict[str, str | float] = {"fill": "currentColor", "fill_opacity": "0.06", "rx": 6}
            svg.add(self.root, "rect", x=left, y=2, width=width, height=height, **shade)
            svg.text(self.root, left + width / 2, 17, f"host {host}", font_size=SMALL)

    def name_all(self) -> None:
        y = self.y(0)
        for rank, plan in enumerate(self.schedules):
            svg.text(self.root, self.x(rank, self.boxes / 2), y - 22, f"rank {rank}", font_weight="bold")
            for chunk in range(plan.chunks + plan.scratch):
                number = str(chunk) if chunk < plan.chunks else f"s{chunk - plan.chunks}"
                svg.text(self.root, self.x(rank, chunk + 0.5), y - 6, number, font_size=10, opacity="0.7")
        rows = {y + 13: "start"} | {self.y(k + 1) - ROW / 2 + 13: f"round {k}" for k in range(self.rounds)}
        for down, words in rows.items():
            svg.text(self.root, 4, down, words, text_anchor="start", font_size=SMALL)

    def arrow(self, move: Move) -> None:
        """Draws an arrow: solid if the chunk is added to the target, dashed if it replaces the target."""
        carried = self.held[move.sender][move.begins][move.source]
        origin = min((chunk for _, chunk in carried), default=move.source)
        stroke = "currentColor" if self.barrier else color(origin)
        x1, y1 = self.x(move.sender, move.source + 0.5), self.y(move.begins) + BOX + 1
        x2, y2 = self.x(move.receiver, move.target + 0.5), self.y(move.ends + 1) - 2
        ends: dict[str, float] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        group = svg.group(self.root, "move", _tip(move, self.barrier), stroke=stroke, fill=stroke)
        svg.add(group, "line", stroke_width=9, stroke_opacity=0, **ends)  # a wider target for the mouse
        line = svg.add(group, "line", stroke_width=1.8, **ends)
        if not move.adds:
            line.set("stroke-dasharray", "5 3")
        length = 6.5 / ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) * length, (y2 - y1) * length
        corners = ((x2, y2), (x2 - dx - dy / 2, y2 - dy + dx / 2), (x2 - dx + dy / 2, y2 - dy - dx / 2))
        svg.add(group, "polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), stroke="none")

    def chunk(self, rank: int, after: int, chunk: int, value: Value, is_new: bool) -> None:
        """Draws a chunk of a rank. In sums, it has a strip for each rank whose values are in it."""
        plan = self.schedules[rank]
        is_final = after == self.rounds and is_result(plan, chunk)
        whose = ", ".join(str(who) for who, _ in sorted(value))
        words = f"rank {rank}, chunk {chunk}: " + (f"from rank {whose}" if value else "empty")
        group = svg.group(self.root, "chunk", words)
        x, inner = self.x(rank, chunk) + 1, self.box - 2
        area: dict[str, float] = {"y": self.y(after), "height": BOX}
        svg.add(group, "rect", x=x, width=inner, fill="white", **area)
        parts = len(self.schedules) if self.sums and len(value) < len(self.schedules) else 1
        for who, origin in sorted(value)[: None if parts > 1 else 1]:
            look: dict[str, str | float] = {
                "fill": GREY if self.barrier else color(origin), "shape_rendering": "crispEdges",
                "fill_opacity": "1" if is_new or is_final else "0.45",
            }  # fmt: skip
            left = x + (who * inner / parts if parts > 1 else 0)
            svg.add(group, "rect", x=left, width=inner / parts, **area, **look)
        border: dict[str, str | float] = {"fill": "none", "stroke": "currentColor", "rx": 1.5}
        if chunk >= max(plan.chunks, 1):
            border["stroke_dasharray"] = "3 2"
        svg.add(group, "rect", x=x, width=inner, stroke_width=2.2 if is_final else 0.8, **area, **border)
        if value and not self.sums:
            svg.text(group, x + inner / 2, self.y(after) + 13, whose, font_size=10, fill=INK)

    def plus(self, rank: int, after: int, chunk: int) -> None:
        look: dict[str, str | float] = {"font_size": 15, "font_weight": "bold", "fill": INK}
        halo: dict[str, str | float] = {"stroke": "white", "stroke_width": 3, "paint_order": "stroke"}
        svg.text(self.root, self.x(rank, chunk + 0.5), self.y(after) + BOX / 2 + 5, "+", **look, **halo)

    def everything(self) -> Element:
        self.shade_hosts()
        self.name_all()
        arrows = list(moves(self.schedules))
        for move in arrows:
            self.arrow(move)
        written = {(move.receiver, move.ends + 1, move.target): move.adds for move in arrows}
        for rank, rounds in enumerate(self.held):
            for after in range(self.rounds + 1):
                for chunk, value in enumerate(rounds[min(after, len(rounds) - 1)]):
                    place = (rank, after, chunk)
                    self.chunk(*place, value, is_new=place in written or not after)
                    if written.get(place) and not self.barrier:
                        self.plus(*place)
        return self.root


def draw(schedules: Sequence[Schedule], hosts: Sequence[int] = (), standalone: bool = False) -> str:
    """Draws the schedules of all ranks as one SVG picture.

    Args:
        schedules: The schedules of all ranks, in rank order.
        hosts: The host of each rank, to be shown. The ranks of a host must be consecutive.
        standalone: Whether the picture is for a file of its own. It then has a white background.

    Returns:
        The SVG text.

    Raises:
        ScheduleError: The schedules do not form a correct collective.
        ValueError: There is too much to draw.
    """
    check(schedules)
    drawing = _Drawing(schedules, hosts)
    boxes = len(schedules) * drawing.boxes * (drawing.rounds + 1)
    if boxes > BOXES:
        raise ValueError(f"a drawing of {len(schedules)} ranks would have {boxes} boxes; use fewer ranks")
    return svg.write(drawing.everything(), standalone)
