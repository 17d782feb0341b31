"""Reads the diaries of the workers of a soak test and derives the report from them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

# Faults after which the ranks do not have to rejoin.
HARMLESS = frozenset({"pause", "add"})
# If no step finishes for this long, the job hangs.
WEDGE_SECONDS = 60.0


def read(folder):
    """All entries of all workers, in chronological order."""
    entries = []
    for path in Path(folder).glob("worker-*.jsonl"):
        for line in path.read_text().splitlines():
            if entry := parse(line):
                entries.append({**entry, "worker": int(path.stem.split("-")[1])})
    return sorted(entries, key=lambda entry: entry["time"])


def parse(line):
    """An entry, or None if the worker was killed while writing it."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


@dataclass
class Report:
    """The results of a soak test."""

    faults: list = field(default_factory=list)
    recoveries: list = field(default_factory=list)
    longest_gap: float = 0.0
    parity_breaks: int = 0
    wedges: int = 0
    worlds: int = 0
    steps: int = 0

    def text(self):
        """The report in human-readable form."""
        kinds = {}
        for _, kind in self.faults:
            kinds[kind] = kinds.get(kind, 0) + 1
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        lines = [
            f"faults                     {len(self.faults)} ({listed})",
            f"worlds                     {self.worlds}",
            f"finished steps             {self.steps}",
            f"recoveries                 {len(self.recoveries)}",
        ]
        for name, rows in by_kind(self.recoveries):
            times = sorted(seconds for seconds, _ in rows)
            late = times[min(len(times) - 1, int(0.95 * len(times)))]
            lines.append(
                f"  {name:24} {len(times):4}  median {median(times):6.2f} s   95th {late:6.2f} s   "
                f"worst {times[-1]:6.2f} s"
            )
        return "\n".join(
            [
                *lines,
                f"longest without a step     {self.longest_gap:.2f} s",
                f"parity breaks              {self.parity_breaks}",
                f"wedges                     {self.wedges}",
            ]
        )


def by_kind(recoveries):
    """All recoveries, then the recoveries for each kind of fault."""
    rows = [("all", recoveries)] if recoveries else []
    for kind in sorted({kind for _, kind in recoveries}):
        rows.append((kind, [row for row in recoveries if row[1] == kind]))
    return rows


def judge(entries, faults):
    """The report of a soak test with these faults, each a time and a kind."""
    steps = [entry["time"] for entry in entries if entry["event"] == "step"]
    worlds = [entry for entry in entries if entry["event"] == "world"]
    gaps = [later - earlier for earlier, later in zip(steps, steps[1:])]
    return Report(
        faults=faults,
        recoveries=recoveries(entries, faults),
        longest_gap=max(gaps, default=0.0),
        parity_breaks=sum(not entry["equal"] for entry in worlds),
        wedges=sum(gap > WEDGE_SECONDS for gap in gaps),
        worlds=sum(entry["rank"] == 0 for entry in worlds),
        steps=len({entry["step"] for entry in entries if entry["event"] == "step"}),
    )


def recoveries(entries, faults):
    """For each rejoin caused by faults, how long they kept steps from finishing, and their kind.

    The time runs from the first fault, or from the last step before the rejoin if that was later,
    to the next step. A rejoin without a fault since the previous one means that the world grew.
    """
    found, before = [], float("-inf")
    for index, entry in enumerate(entries):
        if entry["event"] != "world" or entry["rank"] != 0:
            continue
        causes = [(time, kind) for time, kind in faults if before < time <= entry["time"]]
        causes = [(time, kind) for time, kind in causes if kind not in HARMLESS]
        before = entry["time"]
        steps = (later["time"] for later in entries[index:] if later["event"] == "step")
        finished = next(steps, None)
        if causes and finished is not None:
            kind = causes[0][1] if len(causes) == 1 else "several"
            trained = (
                earlier for earlier in reversed(entries[:index]) if earlier["event"] == "step"
            )
            last = next(trained, entry)["time"]
            found.append((finished - max(causes[0][0], last), kind))
    return found
