"""The official RocketMQ programs: nameserver, broker, proxy, mqadmin and our small Java judges, from Maven.

Touches  target folders in tests/interop/java (git-ignored; built once and rebuilt when a pom.xml or a source changes),
         subprocesses, and the folders that callers pass in.

Invariants
- One Maven run at a time, of whichever project, and one a source state; concurrent callers wait at a lock file.
- Servers listen on ports of 20000-32000 and advertise 127.0.0.1; logs and stores stay in the caller's folder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from judge_shell import JudgeShell
from plain_remoting import UPDATE_BROKER_CONFIG, call, has_route
from programs import Program, ProgramError, Server, free_port

__all__ = [
    "CLIENT_4_9",
    "JAVA_PROJECT",
    "PROXY",
    "classpath",
    "get_ready",
    "judge",
    "missing",
    "mqadmin",
    "result_of",
    "start_broker",
    "start_judge",
    "start_nameserver",
    "start_proxy",
    "start_scenarios",
]

JAVA_PROJECT = Path(__file__).resolve().parent / "interop" / "java"
CLIENT_4_9 = JAVA_PROJECT / "client-4.9"  # the scenarios again, with the last client of 4.x
PROXY = JAVA_PROJECT / "proxy"  # the official proxy's class path alone
JAVA_MIN = 17
BUILD_TIMEOUT_S = 900.0
START_TIMEOUT_S = 60.0
JUDGE_TIMEOUT_S = 120.0
# Judges that leave no client, thread or file behind in their JVM.
SHARING = frozenset(
    {"admin", "delay-send", "lite", "pop-api", "pop-ordered", "pop-push", "push", "send", "sql"}
)

# What the official start script adds for Java 9 and later, plus what unmapping files on 17 needs.
JAVA_OPENS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
]
QUIET = f"-Drmq.logback.configurationFile={JAVA_PROJECT / 'quiet-logback.xml'}"
# The official broker refuses what has waited for 200 ms: on a machine that is busy with other tests that may be any.
PATIENCE: dict[str, object] = {
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 10_000,
    "waitTimeMillsInHeartbeatQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 10_000,
}
SMALL_HEAP = ["-Xms512m", "-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@functools.cache
def missing() -> str | None:
    """Why the official programs cannot run here, or None when they can."""
    for tool, what in (("java", "a Java runtime"), ("javac", "a Java JDK"), ("mvn", "Maven")):
        if shutil.which(tool) is None:
            return f"`{tool}` is not on PATH ({what} is needed for the official RocketMQ programs)"
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False).stdout
    major = re.search(r"javac (\d+)", said)
    if major is None or int(major[1]) < JAVA_MIN:
        return f"`javac -version` says {said.strip()!r}: Java {JAVA_MIN} or later is needed"
    return None


def get_ready() -> str | None:
    """Build what is not built; why that cannot be done here (no Java, no registry), or None.

    Raises ProgramError when our own Java sources do not compile.
    """
    if reason := missing():
        return reason
    try:
        for project in (JAVA_PROJECT, CLIENT_4_9, PROXY):
            classpath(project)
    except ProgramError as failed:
        if "COMPILATION ERROR" in str(failed):
            raise
        return str(failed)
    return None


@functools.cache
def classpath(project: Path = JAVA_PROJECT) -> str:
    """The class path with official jars and our classes of one Maven project, built by Maven when needed.

    Raises ProgramError with Maven's output when the build fails.
    """
    target, locks = project / "target", JAVA_PROJECT / "target"
    target.mkdir(exist_ok=True)
    locks.mkdir(exist_ok=True)
    stamp, jars = target / "built.sha256", target / "classpath.txt"
    with (locks / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = _source_digest(project)
        built = stamp.exists() and stamp.read_text() == digest
        if not (built and all(Path(jar).exists() for jar in jars.read_text().split(os.pathsep))):
            _build(project, jars)
            stamp.write_text(digest)
    return os.pathsep.join([str(target / "classes"), jars.read_text()])


def start_nameserver(folder: Path, *, port: int | None = None, heap: list[str] | None = None) -> Server:
    """Start the official nameserver and wait until it serves; `folder` takes its logs and config."""
    port = port or free_port()
    home = folder / f"namesrv-{port}"
    home.mkdir(parents=True, exist_ok=True)
    config = home / "namesrv.properties"
    config.write_text(_properties({"listenPort": port, "kvConfigPath": home / "kvConfig.json"}))
    return _start(
        "official nameserver",
        ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config)],
        home,
        f"127.0.0.1:{port}",
        heap or ["-Xms128m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
        r"boot success",
    )


def start_broker(
    folder: Path,
    nameservers: str,
    *,
    name: str = "broker-a",
    port: int | None = None,
    config: Mapping[str, object] | None = None,
    heap: list[str] | None = None,
    patient: bool = True,
) -> Server:
    """Start the official broker, registered at `nameservers` ("host:port;host:port"), and wait until it serves.

    The store is `folder`/store. `config` adds to or overrides broker.conf; `heap` are the JVM's own options. One
    that is not `patient` refuses what has waited for long, as it does by default.
    """
    port = port or free_port(-2, 1)  # its second listener is at port - 2, replication at port + 1
    home = folder / f"broker-{port}"
    home.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": nameservers,
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 64 << 20,
        "diskMaxUsedSpaceRatio": 99,
        **(PATIENCE if patient else {}),
        **(config or {}),
    }
    path = home / "broker.conf"
    path.write_text(_properties(settings))
    server = _start(
        "official broker",
        ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(path)],
        home,
        f"127.0.0.1:{port}",
        heap or SMALL_HEAP,
        r"boot success",
    )
    try:
        _register(server, str(settings["brokerName"]), nameservers.split(";"))
    except BaseException:
        server.kill()
        raise
    return server


def start_proxy(folder: Path, nameserver: str, config: Mapping[str, object] | None = None) -> Server:
    """Start the official proxy in cluster mode before whatever is registered at `nameserver`, until it serves gRPC.

    `folder` takes its logs and config; `config` adds to or overrides rmq-proxy.json. Its address is that of gRPC.
    """
    port = free_port(1)
    home = folder / f"proxy-{port}"
    home.mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {
        "proxyMode": "CLUSTER",
        "rocketMQClusterName": "DefaultCluster",
        "proxyClusterName": "DefaultCluster",
        "namesrvAddr": nameserver,
        "localServeAddr": "127.0.0.1",
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        "useEndpointPortFromRequest": True,
        **(config or {}),
    }
    path = home / "rmq-proxy.json"
    path.write_text(json.dumps(settings))
    return _start(
        "official proxy",
        ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(path)],
        home,
        f"127.0.0.1:{port}",
        SMALL_HEAP,
        r"startup successfully",
        project=PROXY,
    )


def mqadmin(nameserver: str, command: str, *args: str, timeout_s: float = JUDGE_TIMEOUT_S) -> str:
    """Run one official mqadmin command and return what it printed; ProgramError when it exits non-zero."""
    line = _java(
        [
            QUIET,
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            f"-Drocketmq.namesrv.addr={nameserver}",
        ],
        ["org.apache.rocketmq.tools.command.MQAdminStartup", command, *args],
    )
    env = {**os.environ, "NAMESRV_ADDR": nameserver}
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    if done.returncode:
        raise ProgramError(f"mqadmin {command} exited {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def start_judge(
    command: str,
    *,
    codec: str = "JSON",
    jvm: list[str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    **args: object,
) -> Program:
    """Start our Java main class (`interop.Main`) with one sub-command and `--name value` arguments.

    `codec` is the header codec that official clients use: JSON or ROCKETMQ; `on_line` is called with each line that it
    writes.
    """
    words = _judging(codec, ["interop.Main", command, *_named(args)], jvm)
    return Program(f"java {command}", words, on_line=on_line)


@functools.cache
def _shell(codec: str) -> JudgeShell:
    return JudgeShell(lambda: Program(f"judges ({codec})", _judging(codec, ["interop.JudgeShell"])))


def _judging(codec: str, words: list[str], jvm: list[str] | None = None) -> list[str]:
    options = [*(jvm or ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])]
    options += [QUIET, f"-Drocketmq.serialize.type={codec}", "-Drocketmq.client.logLevel=ERROR"]
    return _java(options, words)


def _named(args: Mapping[str, object]) -> list[str]:
    return [word for key, value in args.items() for word in (f"--{key}", str(value))]


def judge(
    command: str,
    *,
    codec: str = "JSON",
    timeout_s: float = JUDGE_TIMEOUT_S,
    jvm: list[str] | None = None,
    **args: Any,
) -> dict[str, Any]:
    """Run a Java sub-command to its end and return the one JSON object that it prints as `RESULT {...}`.

    Commands that close what they open run in one JVM for all tests of this process; others, and those with options
    of the JVM in `jvm`, in one of their own.
    """
    if jvm is None and command in SHARING:
        return _shell(codec).judge([command, *_named(args)], timeout_s)
    with start_judge(command, codec=codec, jvm=jvm, **args) as program:
        return result_of(program, timeout_s)


def start_scenarios(
    project: Path, nameserver: str, scenarios: list[str], *, prefix: str, codec: str, folder: Path
) -> Program:
    """Start many of the classes in interop.scenarios in one JVM; each prints `RESULT name {...}` or `FAILED name ...`.

    `project` says with which client: JAVA_PROJECT for 5.3.3, CLIENT_4_9. Topics and groups are named `prefix`-Scenario.
    `folder` takes the local offsets of broadcasting consumers.
    """
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", QUIET]
    options += [f"-Drocketmq.serialize.type={codec}", "-Drocketmq.client.logLevel=ERROR"]
    options += [f"-Drocketmq.client.localOffsetStoreDir={folder}", f"-Duser.home={folder}"]
    options += ["-Drocketmq.client.rebalance.waitInterval=1000"]  # not 20 s until a retry topic is read
    words = ["interop.scenarios.Run", "run", "--namesrv", nameserver, "--prefix", prefix]
    words += ["--scenarios", ",".join(scenarios)]
    return Program(f"scenarios of {prefix}", _java(options, words, project))


def result_of(program: Program, timeout_s: float = JUDGE_TIMEOUT_S) -> dict[str, Any]:
    """The JSON object of a judge's `RESULT` line; ProgramError when it ends without one."""
    line = program.wait_line(r"^RESULT ", timeout_s)
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def _source_digest(project: Path) -> str:
    digest = hashlib.sha256()
    for path in [project / "pom.xml", *sorted((JAVA_PROJECT / "src").rglob("*.java"))]:
        digest.update(path.relative_to(JAVA_PROJECT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _build(project: Path, jars: Path) -> None:
    command = ["mvn", "-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ProgramError(f"{' '.join(command)} failed in {project}:\n{done.stdout}{done.stderr}")


def _java(options: list[str], words: list[str], project: Path = JAVA_PROJECT) -> list[str]:
    return ["java", *options, *JAVA_OPENS, "-cp", classpath(project), *words]


def _start(
    name: str,
    words: list[str],
    home: Path,
    address: str,
    heap: list[str],
    ready: str,
    *,
    project: Path = JAVA_PROJECT,
) -> Server:
    options = [*heap, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    env = {"ROCKETMQ_HOME": str(home)}
    return _Official(name, _java(options, words, project), address, ready, timeout_s=START_TIMEOUT_S, env=env)


class _Official(Server):
    """A server of which nobody needs what it has when its block ends: its orderly stop takes up to ten seconds.

    Who hands its store on calls stop().
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _register(server: Server, name: str, nameservers: list[str]) -> None:
    """Have the broker register now: by itself it may do so only ten seconds after its start.

    Writing brokerPermission makes it register everything at once, unless it has not yet connected to the
    nameserver; then it is asked again.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(has_route(nameserver, "TBW102", name) for nameserver in nameservers):
        if time.monotonic() > deadline:
            raise ProgramError(f"{name} did not register at {nameservers}:\n{server.output}")
        time.sleep(0.1)
        call(server.address, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n")


def _properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())
