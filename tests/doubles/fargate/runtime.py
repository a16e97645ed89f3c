"""Namespaces of tasks and containers, by system calls alone.

    runtime.py task FOLDER              the namespaces that the containers of a task share
    runtime.py container PID SPEC       a container in the task whose first process is PID

`task` has a network, a tmpfs on FOLDER and a process namespace of its own. It says `ready PID`, and lives until its
standard input ends: with whoever started it, however that ends.

`container` has mounts, a root, processes and a host name of its own inside of those. It says `started PID` or
`failed MESSAGE` on standard output; what the container prints goes to standard error. It ends as the container does, with
its exit code, or 128 and the signal. SPEC is a file of JSON, see plane/container.rs.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
# What a container on Fargate may do: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap,
# net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap.
CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
LAST_CAPABILITY = int(open("/proc/sys/kernel/cap_last_cap").read())


def call(name, *arguments):
    """A function of the C library, whose failure is an exception."""
    if getattr(LIBC, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source, target, kind, flags=0, data=None):
    encoded = [word.encode() if isinstance(word, str) else word for word in (source, target, kind)]
    try:
        call("mount", *encoded, ctypes.c_ulong(flags), data.encode() if data else None)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({kind or 'bind'} on {target})") from None


def ended(pid):
    """Waits for a child and gives what this process is to exit with."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def raise_loopback():
    with socket.socket() as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def task(folder):
    call("unshare", NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET)
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(here)
        # Children of others that end here are nobody's.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", folder, "tmpfs", 0, "mode=711")
        raise_loopback()
        os.write(there, b"1")
        os.close(there)
        while os.read(0, 4096):
            pass
        os._exit(0)
    os.close(there)
    if os.read(here, 1):
        print("ready", pid, flush=True)
    os._exit(ended(pid))


def device_nodes(root):
    dev = root + "/dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755")
    for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        os.mknod(f"{dev}/{name}", 0o20666, os.makedev(1, minor))
        os.chmod(f"{dev}/{name}", 0o666)
    os.mknod(f"{dev}/tty", 0o20666, os.makedev(5, 0))
    os.chmod(f"{dev}/tty", 0o666)
    for folder in ("pts", "shm"):
        os.mkdir(f"{dev}/{folder}")
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    mount("shm", f"{dev}/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
                         ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):
        os.symlink(target, f"{dev}/{name}")


def make_root(spec):
    """The container's root: the image below, what it writes above, the mounts of every container, and its volumes."""
    folder = spec["folder"]
    upper, work, root = (f"{folder}/{name}" for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        os.makedirs(path)
    mount("overlay", root, "overlay", 0, f"lowerdir={spec['image']},upperdir={upper},workdir={work}")
    for name in ("proc", "dev", "sys", "etc"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", f"{root}/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    device_nodes(root)
    for name, text in spec["files"].items():
        with open(root + name, "w") as file:
            file.write(text)
    for volume in spec["mounts"]:
        target = root + volume["target"]
        os.makedirs(volume["source"], exist_ok=True)
        os.makedirs(target, exist_ok=True)
        mount(volume["source"], target, None, MS_BIND)
        if volume["read_only"]:
            mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    if spec["read_only"]:
        mount(None, root, None, MS_REMOUNT | MS_RDONLY | MS_BIND)
    return root


def enter(root):
    os.chdir(root)
    call("syscall", SYS_PIVOT_ROOT, b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def lookup(path, name, field):
    """A number of a line of /etc/passwd or /etc/group; a number names itself."""
    if name.isdigit():
        return int(name)
    for line in open(path):
        fields = line.rstrip("\n").split(":")
        if fields[0] == name:
            return int(fields[field])
    raise OSError(f"unable to find {name} in {path}")


def become(user):
    name, _, group = user.partition(":")
    uid = lookup("/etc/passwd", name, 2) if name else 0
    if group:
        gid = lookup("/etc/group", group, 2)
    else:
        gid = lookup("/etc/passwd", name, 3) if name and not name.isdigit() else 0
    os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def execute(argv, environment):
    """Becomes the program. Its module search path is gone with the old root: nothing may be imported here."""
    program = argv[0]
    folders = [""] if "/" in program else environment.get("PATH", "").split(":")
    for folder in folders:
        path = f"{folder}/{program}" if folder else program
        if os.path.exists(path):
            os.execve(path, argv, environment)
    raise OSError(2, "executable file not found in $PATH")


def first_process(spec):
    call("sethostname", spec["hostname"].encode(), len(spec["hostname"]))
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    enter(make_root(spec))
    if spec["folder_inside"]:
        os.makedirs(spec["folder_inside"], exist_ok=True)
        os.chdir(spec["folder_inside"])
    for number in range(LAST_CAPABILITY + 1):
        if number not in CAPABILITIES:
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    become(spec["user"])
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    os.setsid()
    execute(spec["argv"], spec["environment"])


def container(holder, path):
    with open(path) as file:
        spec = json.load(file)
    os.unlink(path)
    spaces = [os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("pid", "net", "ipc", "mnt")]
    here, there = os.pipe2(os.O_CLOEXEC)
    call("setns", spaces[0], NEWPID)
    middle = os.fork()
    if middle == 0:
        os.close(here)
        try:
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for space in spaces[1:]:
                call("setns", space, 0)
            call("unshare", NEWNS | NEWUTS | NEWPID)
            first = os.fork()
        except OSError as error:
            os.write(there, str(error.strerror or error).encode())
            os._exit(128)
        if first == 0:
            try:
                call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                os.dup2(2, 1)
                first_process(spec)
            except Exception as error:
                words = getattr(error, "strerror", None) or str(error)
                os.write(there, f"{words}: {spec['argv'][0]}".encode())
            os._exit(128)
        os.close(there)
        os._exit(ended(first))
    os.close(there)
    for space in spaces:
        os.close(space)
    failure = b""
    while chunk := os.read(here, 4096):
        failure += chunk
    if failure:
        print("failed", failure.decode(errors="replace").replace("\n", " "), flush=True)
    else:
        with open(f"/proc/{middle}/task/{middle}/children") as children:
            # None, when it has ended already.
            print("started", (children.read().split() or ["0"])[0], flush=True)
    os._exit(ended(middle))


if __name__ == "__main__":
    # What whoever started this left open is nothing to those inside.
    os.closerange(3, 65536)
    if sys.argv[1] == "task":
        task(sys.argv[2])
    else:
        container(int(sys.argv[2]), sys.argv[3])
