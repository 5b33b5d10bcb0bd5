"""What is counted for vLLM's KV-transfer metrics, under the names of its NIXL connector where the meaning is the same."""

from __future__ import annotations

from typing import Any

TIMES = ("transfer_duration", "post_duration", "land_duration")
"""Seconds of each transfer: the batch from its submission to its end; making and submitting it; from its end to vLLM."""

SIZES = ("bytes_transferred", "num_descriptors")

COUNTS = ("num_failed_transfers", "num_kv_expired_reqs", "num_notifications_after_expiry", "num_blocks_checked", "num_blocks_bad")


def empty() -> dict[str, Any]:
    """Nothing counted: lists of TIMES and SIZES, an entry a transfer, and COUNTS."""
    return {**{name: [] for name in TIMES + SIZES}, **dict.fromkeys(COUNTS, 0)}


def is_empty(data: dict[str, Any]) -> bool:
    return not any(data.values())


def add(data: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        data[name] += value


def reduced(data: dict[str, Any]) -> dict[str, int | float]:
    """A line's worth for vLLM's log."""
    n = len(data["transfer_duration"])
    total, seconds = sum(data["bytes_transferred"]) / 2**20, sum(data["transfer_duration"])
    line: dict[str, int | float] = {"Num successful transfers": n}
    for name, text in zip(TIMES, ("xfer", "post", "land")):
        times = sorted(data[name])
        line[f"Avg {text} time (ms)"] = round(sum(times) / n * 1e3, 3) if n else 0
        line[f"P90 {text} time (ms)"] = round(times[(9 * n - 1) // 10] * 1e3, 3) if n else 0
    return {
        **line,
        "Avg MB per transfer": round(total / n, 3) if n else 0,
        "Throughput (MB/s)": round(total / seconds, 3) if seconds else 0,
        "Avg number of descriptors": round(sum(data["num_descriptors"]) / n, 1) if n else 0,
        "Num failed transfers": data["num_failed_transfers"],
        "Num KV expired reqs": data["num_kv_expired_reqs"],
        "Num notifs after expiry": data["num_notifications_after_expiry"],
        "Num blocks checked": data["num_blocks_checked"],
        "Num blocks bad": data["num_blocks_bad"],
    }
