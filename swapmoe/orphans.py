"""Ties a child to this process, so that it ends when this process ends, whatever ends it.

Linux: the kernel's parent death signal. Windows: a job object that closes with this process.
Elsewhere nothing of the kind exists, and a child outlives a wrapper that was killed outright.
"""

import os
import signal
import sys
from collections.abc import Callable

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMITS = 9
    _TERMINATE, _SET_QUOTA = 0x1, 0x100

    class _BasicLimits(ctypes.Structure):
        """JOBOBJECT_BASIC_LIMIT_INFORMATION."""

        _fields_ = (
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        """JOBOBJECT_EXTENDED_LIMIT_INFORMATION; its IO_COUNTERS are six 64-bit numbers."""

        _fields_ = (
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    def tie(pid: int) -> None:
        """Put the child into a job whose only handle is this process's. Raises `OSError`."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = wintypes.HANDLE
        kernel.CreateJobObjectW.argtypes = (wintypes.LPVOID, wintypes.LPCWSTR)
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
        kernel.SetInformationJobObject.argtypes = (
            *(wintypes.HANDLE, ctypes.c_int, wintypes.LPVOID, wintypes.DWORD),
        )
        kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
        limits = _ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
        job = kernel.CreateJobObjectW(None, None)  # closed by the end of this process, not before
        process = kernel.OpenProcess(_SET_QUOTA | _TERMINATE, False, pid)
        if not (
            job
            and process
            and kernel.SetInformationJobObject(
                job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            and kernel.AssignProcessToJobObject(job, process)
        ):
            raise ctypes.WinError(ctypes.get_last_error())

else:

    def tie(pid: int) -> None:
        """Nothing to do once the child runs."""


def before_exec() -> Callable[[], None] | None:
    """For `subprocess.Popen(preexec_fn=...)`: what the child does before it becomes the program.

    The signal is sent when the thread that starts the child ends: start it from the main thread.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
    parent = os.getpid()

    def bind() -> None:
        prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died in between
            os._exit(128 + signal.SIGKILL)

    return bind
