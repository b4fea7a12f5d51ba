"""Draws what `locustfile.py --summary` or `sweep.py` wrote, as an SVG beside it.

    python -m loadtest.plot loadtest/results/sweep.json

Needs matplotlib (loadtest/requirements.txt).
"""

import argparse
import json
from pathlib import Path
from typing import Any

_FIGURES = (
    ("time to first token, ms", "ttft_ms"),
    ("time per token after it, ms", "tpot_ms"),
    ("tokens per second and GPU", "tokens_per_s"),
)


def series(result: dict[str, Any]) -> dict[str, tuple[float, list[dict[str, Any]]]]:
    """For each line its GPUs and its groups by rising rate."""
    if "systems" in result:
        lines = {name: (s["gpus"], s["groups"]) for name, s in result["systems"].items()}
    else:
        kinds = dict.fromkeys(group["speculation"] for group in result["groups"])
        lines = {
            f"speculation {kind}": (1.0, [g for g in result["groups"] if g["speculation"] == kind])
            for kind in kinds
        }
    return {name: (n, sorted(groups, key=_rate)) for name, (n, groups) in lines.items()}


def draw(result: dict[str, Any], out: Path) -> None:
    """Median and 90th percentile over the rate, and throughput."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "specray"  # the same file for the same figures
    from matplotlib import pyplot as plt

    is_sweep = "systems" in result
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (title, key) in zip(axes, _FIGURES, strict=True):
        for name, (gpus, groups) in series(result).items():
            rates = [group["qps"] / gpus for group in groups]
            if key == "tokens_per_s":
                axis.plot(rates, [g[key] / gpus for g in groups], "o-", label=name)
                continue
            (line,) = axis.plot(
                rates, [g[key]["p50"] for g in groups], "o-", label=f"{name}, median"
            )
            p90 = [g[key]["p90"] for g in groups]
            axis.plot(rates, p90, ":", color=line.get_color(), label=f"{name}, 90 %")
        axis.set(title=title if is_sweep else title.removesuffix(" and GPU"), ylim=(0, None))
        axis.set_xlabel("requests per second and GPU" if is_sweep else "requests per second")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(out, metadata={"Date": None})


def _rate(group: dict[str, Any]) -> float:
    return float(group["qps"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    draw(json.loads(args.result.read_text()), args.result.with_suffix(".svg"))


if __name__ == "__main__":
    main()
