"""What a pod takes of the machine."""

import pathlib


def resident(pid):
    """Kilobytes; what processes share is counted once."""
    rows = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))


def memory(pod):
    """Mebibytes of weir-ingress, of weir's master, and of its workers together."""
    parts = [[pod.controller.child.pid], [pod.weir.child.pid], pod.workers()]
    return [sum(resident(pid) for pid in part) / 1024 for part in parts]
