"""What the kernels can refuse, each with the argument's name and a stable code."""

from __future__ import annotations

from kvgrove_protocol.errors import Retryable, Terminal


class BadArgument(Terminal):
    """An array or number that an op cannot work on. ``field`` is the name of the argument."""

    code = "bad_kernel_argument"

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}", field=argument)


class KernelsUnavailable(Terminal):
    """Device arrays were given, but what runs or compiles kernels is not installed."""

    code = "kernels_unavailable"


class KernelCompileFailed(Terminal):
    """The compiler refused a kernel source. The message carries its log."""

    code = "kernel_compile_failed"


class DeviceOutOfMemory(Retryable):
    """An op found no scratch memory on the device. Nothing was started."""

    code = "device_out_of_memory"
