#!/usr/bin/env python3
"""runner.py PLAY: a runner of the user who calls it, that runs jobs by container-hook; fails with what is not as it should be.

Expects the hook installed in ~/hook, and a registry with `busybox` on 127.0.0.1:5000.
"""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

HOME = pathlib.Path.home()
IMAGE = "127.0.0.1:5000/busybox:1"
LIMITS = "--memory 64m --cpus 0.5 --pids-limit 40"


class Runner:
    """A runner, for one job at a time."""

    def __init__(self, name):
        self.name, self.home, self.state, self.count, self.log = name, HOME / name, None, 0, ""
        self.work = self.home / "_work"
        self.temp = self.work / "_temp"
        self.workspace = self.work / "repo/repo"
        for path in [
            self.home / "externals", self.temp / "_github_home", self.temp / "_github_workflow",
            self.temp / "_runner_file_commands", self.temp / "_runner_hook_responses", self.workspace,
        ]:
            path.mkdir(parents=True, exist_ok=True)
        (self.temp / "_github_workflow/event.json").write_text("{}\n")

    def environment(self):
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(HOME),
            "LANG": "C.UTF-8", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_NAME": self.name, "RUNNER_TEMP": str(self.temp), "RUNNER_WORKSPACE": str(self.work / "repo"),
            "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64", "GITHUB_REPOSITORY": "octo/repo", "GITHUB_JOB": "build",
            "GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_WORKFLOW": "ci", "GITHUB_ACTOR": "mona",
            "GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main", "GITHUB_SERVER_URL": "https://github.com",
        }

    def start(self, command, args):
        """Starts a call of the hook."""
        self.count += 1
        response = self.temp / f"_runner_hook_responses/{self.count}.json"
        response.write_text("")
        request = {"command": command, "responseFile": str(response), "args": args, "state": self.state}
        # Where containers cannot run, nothing is installed, and the log of a job says the same.
        script = HOME / "hook/container-hook.sh"
        command = ["bash", "-e", str(script)] if script.exists() else ["/usr/bin/container-hook"]
        call = subprocess.Popen(
            command, cwd=self.workspace, env=self.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        call.stdin.write(json.dumps(request) + "\n")
        call.stdin.close()
        return call, response

    def call(self, command, args):
        """Makes a call of the hook; returns its exit code and what it said."""
        begin = time.monotonic()
        call, response = self.start(command, args)
        said = call.stdout.read()
        code = call.wait()
        text = response.read_text()
        if text.strip():
            self.state = json.loads(text).get("state") or self.state
        print(f"{self.name}: {command}: exit code {code} after {time.monotonic() - begin:.1f} s", flush=True)
        print("".join(f"    {line}\n" for line in said.splitlines()), end="", flush=True)
        return code, said

    def mount(self, source, target, read_only=False):
        return {
            "userProvidedValue": None, "sourceVolumePath": str(source), "targetVolumePath": target,
            "readOnly": read_only,
        }

    def prepare(self, options, services=()):
        container = self.container(options)
        container["workingDirectory"] = "/__w/repo/repo"
        container["environmentVariables"] = {"HOME": "/github/home"}
        container["systemMountVolumes"] = [
            self.mount(self.work, "/__w"), self.mount(self.home / "externals", "/__e", True),
            self.mount(self.temp, "/__w/_temp"), self.mount(self.temp / "_github_home", "/github/home"),
            self.mount(self.temp / "_github_workflow", "/github/workflow"),
        ]
        return self.call("prepare_job", {"container": container, "services": list(services)})

    def container(self, options=None):
        return {
            "image": IMAGE, "dockerfile": None, "entryPointArgs": [], "entryPoint": None, "workingDirectory": None,
            "createOptions": options, "registry": None, "environmentVariables": {}, "portMappings": [],
            "systemMountVolumes": [], "userMountVolumes": [],
        }

    def step(self, script):
        self.count += 1
        file = self.temp / f"step-{self.count}.sh"
        file.write_text(script)
        return {
            "entryPointArgs": ["-e", f"/__w/_temp/{file.name}"], "entryPoint": "sh", "prependPath": [],
            "environmentVariables": {}, "workingDirectory": "/__w/repo/repo",
        }

    def run(self, script):
        return self.call("run_script_step", self.step(script))

    def cleanup(self):
        ended = self.call("cleanup_job", {})
        self.state = None
        return ended

    def foreign(self):
        """Returns the files in the work directory that this user does not own."""
        return [str(p) for p in self.work.rglob("*") if p.lstat().st_uid != os.getuid()]


def expect(is_so, what):
    if not is_so:
        sys.exit(f"FAILED: {what}")


def own_cgroup():
    """Returns the directory of what was delegated: the cgroup of this service."""
    path = pathlib.Path("/proc/self/cgroup").read_text().split("::")[1].strip()
    path = pathlib.Path("/sys/fs/cgroup" + path)
    return path.parent if path.name == "runner" else path


def jobs():
    return [str(path) for path in own_cgroup().glob("oci-hooks-*")]


def good(ended, what):
    code, said = ended
    expect(code == 0, f"{what}: exit code {code}: {said}")
    return said


READ = "cd /sys/fs/cgroup; cat /proc/self/cgroup memory.max cpu.max pids.max"


def limits():
    """Limits are in force, are reported when they are met, and leave nothing."""
    runner = Runner("one")
    said = good(runner.prepare(LIMITS), "prepare")
    expect("not enforced" not in said, "no warning is due")
    said = good(runner.run(READ), "limits are read")
    for line in ["0::/", "67108864", "50000 100000", "40"]:
        expect(line in said.splitlines(), f"{line!r} in {said!r}")
    print("cgroups of the job:", *sorted(str(p.relative_to(own_cgroup())) for p in own_cgroup().rglob("*") if p.is_dir()),
          sep="\n    ")
    code, _ = runner.run("dd if=/dev/zero of=/dev/null bs=200M count=1")
    expect(code != 0, "what takes 200 MB of 64 is killed")
    code, _ = runner.run("for i in $(seq 60); do sleep 5 & done; wait")
    expect(code != 0, "there are no 60 processes of 40")
    # What the step left running takes from the limit until it ends.
    count = next(own_cgroup().glob("oci-hooks-*/oci-hooks/*/pids.current"))
    while int(count.read_text()) > 10:
        time.sleep(0.1)
    good(runner.run("touch file; mkdir -p a/b; id -u"), "a step after that")
    said = good(runner.cleanup(), "cleanup")
    expect("ran out of memory" in said, "the log says that memory was short")
    expect("limit of processes" in said, "the log says that processes were")
    expect(not jobs(), f"no cgroup of a job is left: {jobs()}")
    expect(not runner.foreign(), f"all files are the runner's: {runner.foreign()}")


def two():
    """Two runners of one service have jobs at the same time."""
    runners = [Runner("one"), Runner("two")]
    failed = []

    def play(runner):
        try:
            good(runner.prepare(LIMITS), "prepare")
            expect("67108864" in good(runner.run(READ), "step"), "each has its limits")
        except SystemExit as error:
            failed.append(error)

    threads = [threading.Thread(target=play, args=[runner]) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not failed, failed)
    expect(len(jobs()) == 2, f"each has a cgroup: {jobs()}")
    good(runners[0].cleanup(), "cleanup")
    good(runners[1].run("true"), "the other goes on")
    good(runners[1].cleanup(), "cleanup")
    expect(not jobs(), f"none is left: {jobs()}")


def together():
    """All containers of a job have a limit together, by [policy.max.job]."""
    runner = Runner("one")
    good(runner.prepare(None, [dict(runner.container(), contextName="redis", entryPoint="sleep",
                                    entryPointArgs=["1000"])]), "prepare")
    found = list(own_cgroup().glob("oci-hooks-*/oci-hooks/job-*"))
    expect(len(found) == 1, f"a cgroup of all containers: {found}")
    read = lambda name: (found[0] / name).read_text().strip()
    print("together:", read("memory.max"), read("pids.max"))
    expect(read("memory.max") == str(128 << 20) and read("pids.max") == "100", "it has the limits")
    good(runner.cleanup(), "cleanup")


def undelegated():
    """Where there is no cgroup jobs run, and a warning says what does not hold."""
    runner = Runner("one")
    said = good(runner.prepare(LIMITS), "prepare")
    lines = [line for line in said.splitlines() if "not enforced" in line]
    expect(len(lines) == 1 and "memory, cpus, pids-limit" in lines[0], f"one warning names them: {said}")
    good(runner.run("echo works"), "a step")
    good(runner.cleanup(), "cleanup")
    said = good(runner.prepare(None), "prepare without limits")
    expect("not enforced" not in said, "nothing to warn of")
    good(runner.cleanup(), "cleanup")
    expect(not runner.foreign(), "all files are the runner's")


def enforced():
    """By limits.enforce that is an error."""
    runner = Runner("one")
    code, said = runner.prepare(LIMITS)
    expect(code != 0 and "not enforced" in said, "the job fails")
    good(runner.prepare(None), "a job without limits")
    good(runner.cleanup(), "cleanup")


def partly():
    """Where only memory and pids are delegated, the others are named."""
    runner = Runner("one")
    said = good(runner.prepare(LIMITS), "prepare")
    expect("job container: cpus." in said and "memory, pids" in said, f"the warning names cpus alone: {said}")
    said = good(runner.run("cd /sys/fs/cgroup; cat memory.max pids.max"), "step")
    expect("67108864" in said and "40" in said.split(), "the others hold")
    good(runner.cleanup(), "cleanup")


def left():
    """A job that the service leaves behind when it is stopped."""
    runner = Runner("one")
    good(runner.prepare(LIMITS), "prepare")
    call, _ = runner.start("run_script_step", runner.step("echo stays; sleep 100000"))
    for line in call.stdout:
        if "stays" in line:
            break
    (HOME / "left").write_text("\n".join(jobs()))
    time.sleep(100000)


def job():
    """A whole job."""
    runner = Runner("one")
    good(runner.prepare(None), "prepare")
    said = good(runner.run("cat /proc/self/uid_map; echo works >file; cat file"), "a step")
    expect("works" in said.split(), "it writes to the workspace")
    good(runner.cleanup(), "cleanup")
    expect(not runner.foreign(), "all files are the runner's")


def refused():
    """Where AppArmor refuses user namespaces, the log says so."""
    code, said = Runner("one").prepare(None)
    expect(code != 0 and "user namespace" in said, f"the job fails, and says what it was refused: {said}")


PLAYS = [limits, two, together, undelegated, enforced, partly, left, job, refused]
{play.__name__: play for play in PLAYS}[sys.argv[1]]()
print("went well", flush=True)
