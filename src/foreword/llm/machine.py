"""What this process may use: cores and memory, as the system and its control group grant them."""

import os
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CGROUP_USED = (Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads of one core counted once."""
    granted = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for cpu in granted:
        try:
            siblings.add((_CPU / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def available_bytes() -> int:
    """Memory that can still be taken without swapping, within the control group's limit."""
    free = _available_in_system()
    for limit_file, used_file in zip(_CGROUP_LIMITS, _CGROUP_USED, strict=True):
        try:
            limit, used = limit_file.read_text().strip(), used_file.read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def resident_bytes() -> int:
    """Memory this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _available_in_system() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
