"""`facetrain doctor`: what is installed and works on this machine; ok, or what to do.

Each check is a function that returns a `Finding`; adding one is a function and a line in CHECKS.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from facetrain.errors import FacetrainError

OK, NOTE, ERROR = "ok", "note", "ERROR"
_COLLECTIVE_TIMEOUT_S = 120
_LITTLE_MEMORY_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ok, a note (works, with a limit) or an error, and what to do."""

    state: str
    text: str
    advice: str = ""


def main(arguments: Sequence[str]) -> int:
    """Print every check; exit code 2 when one found an error."""
    if arguments:
        if arguments[0] in ("-h", "--help"):
            print("usage: facetrain doctor\n\nCheck this machine and say what to do.")
            return 0
        print(f"error: facetrain doctor takes no flags, got {arguments[0]}", file=sys.stderr)
        return 2
    findings = []
    for name, check in CHECKS.items():
        finding = check()
        findings.append(finding)
        print(f"{finding.state:<6} {name:<12} {finding.text}", flush=True)
        if finding.advice:
            print(f"{'':<19} -> {finding.advice}", flush=True)
    return 2 if any(finding.state == ERROR for finding in findings) else 0


def check_python() -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    text = f"Python {platform.python_version()} on {system}, facetrain {_version('facetrain')}"
    return Finding(OK, text)


def check_torch() -> Finding:
    import torch

    from facetrain.device import has_fast_bf16

    bf16 = "bf16" if has_fast_bf16(torch.device("cpu")) else "no bf16, runs in fp32"
    cpu = f"{torch.get_num_threads()} CPU threads ({bf16})"
    return Finding(OK, f"torch {torch.__version__}, {cpu}")


def check_gpu() -> Finding:
    import torch

    from facetrain.device import has_fast_bf16
    from facetrain.memory import format_bytes

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            return Finding(
                ERROR,
                "nvidia-smi is here, but torch finds no GPU",
                "install a CUDA build of torch that fits the driver (nvidia-smi shows its version)",
            )
        return Finding(NOTE, "none; training runs on the CPU")
    parts = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bf16" if has_fast_bf16(torch.device("cuda", index)) else "no bf16"
        parts.append(
            f"{torch.cuda.get_device_name(index)}, {format_bytes(free)} of {format_bytes(total)} "
            f"free, {bf16}"
        )
    return Finding(OK, "; ".join(parts))


def check_engines() -> Finding:
    import torch.distributed as dist

    backends = [
        name
        for name, there in (
            ("gloo", dist.is_gloo_available()),
            ("nccl", dist.is_nccl_available()),
        )
        if there
    ]
    if "gloo" not in backends:
        return Finding(
            ERROR,
            f"torch.distributed has {', '.join(backends) or 'no backend'}",
            "install a torch build with gloo",
        )
    return Finding(OK, f"torch.distributed with {' and '.join(backends)}")


def check_collective() -> Finding:
    """A sum over two processes, started as `facetrain train` starts its own."""
    started = time.monotonic()
    command = [sys.executable, "-m", "facetrain_tools.collective_check", "torch"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_COLLECTIVE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        found = f"no answer in {_COLLECTIVE_TIMEOUT_S} s"
    else:
        if run.returncode == 0:
            seconds = time.monotonic() - started
            return Finding(OK, f"2 processes summed a tensor in {seconds:.1f} s, start included")
        said = run.stderr.strip().splitlines()
        found = said[-1] if said else f"exit code {run.returncode}"
    return Finding(
        ERROR,
        f"2 processes could not sum a tensor: {found}",
        "allow connections over the loopback interface; name it in GLOO_SOCKET_IFNAME if it is "
        "not called lo",
    )


def check_faiss() -> Finding:
    from facetrain.evaluation.search import installed_faiss

    installed = installed_faiss()
    if len(installed) > 1:
        return Finding(
            ERROR,
            f"{' and '.join(installed)} are both installed: they are one module, and one has "
            "overwritten parts of the other",
            f"pip uninstall -y {' '.join(installed)}, then install one of them",
        )
    try:
        faiss = importlib.import_module("faiss")
    except ImportError as error:
        if installed:
            return Finding(
                ERROR,
                f"{installed[0]} is installed but cannot be imported ({error})",
                f"pip install --force-reinstall {installed[0]}",
            )
        return Finding(
            NOTE,
            "not installed; the torch search backend serves, with the same answers",
            "for large galleries: pip install 'facetrain[cpu]', or 'facetrain[gpu]'",
        )
    gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else 0
    return Finding(OK, f"{installed[0] if installed else 'faiss'} {faiss.__version__}, {gpus} GPUs")


def check_horovod() -> Finding:
    from facetrain.distributed.horovod_engine import load_horovod

    version = _version("horovod")
    if version == "not installed":
        return Finding(
            NOTE,
            "not installed; torch's engine serves",
            "for --engine horovod and horovodrun: facetrain horovod build",
        )
    try:
        horovod = load_horovod()
    except FacetrainError as error:
        return Finding(ERROR, str(error), "facetrain horovod build, or pip uninstall -y horovod")
    backends = "gloo and NCCL" if horovod.nccl_built() else "gloo"
    return Finding(OK, f"Horovod {version} with {backends}")


def check_opencv() -> Finding:
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        missing = str(error)
        if "libGL" in missing or "libgthread" in missing or "libglib" in missing:
            advice = (
                "this image lacks desktop libraries: apt-get install libgl1 libglib2.0-0, or "
                "replace opencv-python by opencv-python-headless"
            )
        else:
            advice = "pip install --force-reinstall opencv-python"
        return Finding(ERROR, f"OpenCV cannot be imported: {missing}", advice)
    if not hasattr(cv2, "IMREAD_COLOR_RGB"):
        return Finding(
            ERROR, f"OpenCV {cv2.__version__} is too old", "pip install 'opencv-python>=4.11'"
        )
    return Finding(OK, f"OpenCV {cv2.__version__}")


def check_memory() -> Finding:
    from facetrain.memory import format_bytes

    available = available_memory_bytes()
    if available is None:
        return Finding(NOTE, "free memory cannot be read on this system")
    free_disk = shutil.disk_usage(Path.cwd()).free
    text = f"{format_bytes(available)} available, {format_bytes(free_disk)} free on this disk"
    if available < _LITTLE_MEMORY_BYTES:
        return Finding(NOTE, text, "the quickstart takes about 1.5 GiB over its two processes")
    return Finding(OK, text)


def available_memory_bytes() -> int | None:
    """Memory that new processes can use, in bytes: the machine's, or less under a cgroup limit."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        found.append(int(text) - int(used.read_text()))
    return min(found) if found else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": check_python,
    "torch": check_torch,
    "gpu": check_gpu,
    "engines": check_engines,
    "collective": check_collective,
    "horovod": check_horovod,
    "faiss": check_faiss,
    "opencv": check_opencv,
    "memory": check_memory,
}
