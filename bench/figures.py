"""Figures as they are kept under `bench/results`: medians and spreads instead of every round."""

import json
import statistics
from pathlib import Path

WIDTH = 120


def save(path, document):
    """Writes a compact file: rounds become figures, and values that fit stay on one line."""
    Path(path).write_text(text(small(document)) + "\n")


def small(value, name=""):
    """Replaces each list of rounds by its median, the middle 80 % and their number."""
    if isinstance(value, dict):
        return {key: small(each, key) for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        # The output of `ronde bench` already has figures next to its rounds.
        return len(value) if name == "rounds" else spread(value)
    if isinstance(value, list):
        return [small(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def spread(rounds):
    """Median and middle 80 % of some rounds."""
    tenths = statistics.quantiles(rounds, n=10, method="inclusive") if len(rounds) > 1 else rounds
    figures = {"median": statistics.median(rounds), "p10": tenths[0], "p90": tenths[-1]}
    return {**small(figures), "rounds": len(rounds)}


def text(value, depth=0):
    """JSON in few lines."""
    line = json.dumps(value)
    if len(line) + depth <= WIDTH or not isinstance(value, (dict, list)):
        return line
    inside, outside = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {text(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(inside + item for item in items) + f"\n{outside}}}"
    items = [inside + text(each, depth + 1) for each in value]
    return "[\n" + ",\n".join(items) + f"\n{outside}]"
