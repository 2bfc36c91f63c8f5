"""Hosts in network namespaces: own addresses, own /etc/hosts, links that can be cut and slowed.

Needs root and iproute2; elsewhere the tests that use them are skipped, with the reason.
"""

import os
import shutil
import subprocess
from pathlib import Path

NAME = "node{}"
ADDRESS = "10.77.0.{}"
# A host's own name is loopback in the file that Debian writes, which is what workers must not fall for.
FILE = "127.0.0.1 localhost\n127.0.1.1 {own}\n{all}"


def missing():
    """Why there can be no such hosts here, if there cannot."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need iproute2 (ip, tc)"
    name = f"phalanx-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        return f"this machine gives no network namespaces: {done.stderr.strip()}"
    do("ip", "netns", "del", name)
    return None


def do(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Hosts:
    """Some hosts on one switch.

    Args:
        count: How many.
    """

    def __init__(self, count=2):
        mark = f"phx{os.getpid()}"
        self.switch = f"{mark}s"
        self.names = [NAME.format(index) for index in range(count)]
        self.addresses = [ADDRESS.format(index + 1) for index in range(count)]
        self.spaces = [f"{mark}h{index}" for index in range(count)]

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self):
        do("ip", "netns", "add", self.switch)
        do("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        do("ip", "-n", self.switch, "link", "set", "br0", "up")
        everybody = "".join(f"{a} {n}\n" for a, n in zip(self.addresses, self.names))
        for index, space in enumerate(self.spaces):
            do("ip", "netns", "add", space)
            do(
                "ip",
                "-n",
                self.switch,
                "link",
                "add",
                f"v{index}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                space,
            )
            do("ip", "-n", self.switch, "link", "set", f"v{index}", "master", "br0", "up")
            do("ip", "-n", space, "addr", "add", f"{self.addresses[index]}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                do("ip", "-n", space, "link", "set", link, "up")
            folder = Path("/etc/netns") / space
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(FILE.format(own=os.uname().nodename, all=everybody))

    def __exit__(self, *_):
        for space in [*self.spaces, self.switch]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=20)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)

    def inside(self, index):
        """What stands before a command that runs on a host."""
        return ("ip", "netns", "exec", self.spaces[index])

    def write_hosts(self, index, text):
        (Path("/etc/netns") / self.spaces[index] / "hosts").write_text(text)

    def cut(self, index):
        """Take a host's cable out."""
        do("ip", "-n", self.switch, "link", "set", f"v{index}", "down")

    def slow(self, index, rate):
        """Let so many bits a second leave a host."""
        shape = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms")
        do(*self.inside(index), "tc", "qdisc", "add", "dev", "eth0", *shape)


def listening(pid):
    """The addresses on which a process listens, from the kernel's own tables of its network namespace."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            own.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in own:
                found.add(_address(words[1].split(":")[0]))
    return found


def _address(digits):
    if len(digits) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(digits)))
    words = [digits[at : at + 8] for at in range(0, 32, 8)]
    text = "".join(bytes(reversed(bytes.fromhex(word))).hex() for word in words)
    if text.startswith("0" * 20 + "ffff"):
        return ".".join(str(byte) for byte in bytes.fromhex(text[24:]))
    return text
