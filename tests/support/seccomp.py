"""Have Linux refuse system calls of this process from now on, as a sandbox does (seccomp(2)).

The filters are programs for x86-64, installed without a C compiler.
"""

import ctypes
import errno
import platform
import struct
import sys

AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
CALLS = {"mmap": 9, "mprotect": 10, "clone": 56, "fork": 57, "vfork": 58}
PROT_EXEC = 4
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # instructions of BPF
NUMBER, THIRD_ARGUMENT = 0, 32  # offsets in the data of a filter
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class Program(ctypes.Structure):
    """sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]  # ctypes reads a list


def refuse(names, error, bits=None):
    """Have the system calls fail with this errno; with `bits`, those alone whose third argument has
    one of them.
    """
    answer = REFUSE | getattr(errno, error)
    lines = [(LOAD, 0, 0, NUMBER)]
    for name in names:
        if bits is None:
            lines += [(EQUAL, 0, 1, CALLS[name]), (RETURN, 0, 0, answer)]
        else:
            lines += [(EQUAL, 0, 4, CALLS[name]), (LOAD, 0, 0, THIRD_ARGUMENT)]
            lines += [(ANY_BIT, 0, 1, bits), (RETURN, 0, 0, answer), (LOAD, 0, 0, NUMBER)]
    lines.append((RETURN, 0, 0, ALLOW))
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = Program(len(lines), ctypes.addressof(text))
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


def refuse_executable_memory():
    """As systemd's MemoryDenyWriteExecute and SELinux's execmem."""
    refuse(["mmap", "mprotect"], "EACCES", PROT_EXEC)
