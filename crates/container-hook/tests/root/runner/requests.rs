//! Each recorded request has the effect that its manifest describes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::github_runner::GithubRunner;
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::{externals, program};
use serde_json::{Value, json};

use crate::runner::setup::{runner, with_both_runtimes, with_each_runtime, write};

/// Policy for the requests' options that only an administrator can permit.
const POLICY: &str = r#"
[policy]
privileged = true
host-namespaces = ["ipc", "network"]
bind-mounts = ["/dev/shm"]
devices = ["/dev"]
security-opts = ["seccomp=unconfined"]
gpus = { devices = ["/dev/full"] }
[registry."localhost:5000"]
"#;

const HOME: &str = "/home/runner/actions-runner";

/// A line of the manifest.
struct RequestCase {
    file: String,
    expect: String,
    description: String,
}

fn cases(prefix: &str) -> Vec<RequestCase> {
    let manifest = fs::read_to_string(directory().join("MANIFEST.jsonl")).unwrap();
    let lines = manifest.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let cases = lines.map(|line| RequestCase {
        file: text(&line, "file"),
        expect: text(&line, "expect"),
        description: text(&line, "description"),
    });
    let cases: Vec<_> = cases.filter(|case| case.file.starts_with(prefix)).collect();
    assert!(!cases.is_empty());
    cases
}

fn directory() -> PathBuf {
    program::repository("crates/container-hook-job/tests/data/requests")
}

impl RequestCase {
    /// Returns the request with this machine's paths in place of the recorded ones.
    fn text(&self, runner: &GithubRunner<'_>) -> String {
        let home = runner.home().display().to_string();
        let mut text = fs::read_to_string(directory().join(&self.file)).unwrap();
        for (from, to) in [
            (format!("{HOME}/externals"), externals::shared().display().to_string()),
            (HOME.to_owned(), home.clone()),
            ("/opt/hostedtoolcache".to_owned(), format!("{home}/hostedtoolcache")),
            ("\"/source/directory".to_owned(), format!("\"{home}/source")),
            ("\"/host".to_owned(), format!("\"{home}/host")),
            ("-v /tmp/x:".to_owned(), format!("-v {home}/x:")),
            // Not every machine has `/dev/kvm`.
            ("--device /dev/kvm".to_owned(), "--device /dev/full".to_owned()),
        ] {
            text = text.replace(&from, &to);
        }
        text
    }

    /// Makes the call, with the runner's state if the request has the state of a prepared job.
    fn call(&self, runner: &mut GithubRunner<'_>) -> EndedCall {
        let mut text = self.text(runner);
        let mut response = None;
        if let Ok(mut request) = serde_json::from_str::<Value>(&text) {
            if request["state"]["container"].is_string() {
                request["state"] = runner.state.clone();
                text = format!("{request}\n");
            }
            response = request["responseFile"].as_str().map(PathBuf::from);
        }
        let response = response.filter(|path| path.parent().is_some_and(|parent| parent.is_dir()));
        if let Some(response) = &response {
            fs::write(response, "").unwrap();
        }
        let ended = runner.start_raw(text.into_bytes(), response).wait();
        runner.keep_state(&ended);
        ended
    }

    fn check(&self, ended: EndedCall) {
        let context = format!("{}: {}", self.file, self.description);
        match self.expect.as_str() {
            "ok" => {
                let code = if self.file == "container-013-exit-code.json" { 37 } else { 0 };
                assert_eq!(ended.status.code(), Some(code), "{context}\n{}", ended.log());
                self.check_content(&ended);
                ended.code(code);
            }
            "error" => {
                let said = ended.failure();
                assert!(self.error_has(&said), "{context}\n{said}");
            }
            _ => {
                assert!(ended.status.code().is_some(), "{context}");
                assert!(!ended.log().contains("panicked"), "{context}\n{}", ended.log());
            }
        }
    }

    /// Checks the described effects other than success.
    fn check_content(&self, ended: &EndedCall) {
        let out = ended.stdout();
        let response = ended.response.as_ref();
        let services = response.map(|response| &response["context"]["services"]);
        let has =
            |text: &str| assert!(out.contains(text), "{}: {text:?} is not in {out}", self.file);
        match self.file.split('-').take(2).collect::<Vec<_>>().join("-").as_str() {
            "prepare-003" => assert_eq!(services.unwrap()[0]["ports"], json!({"5432": "5432"})),
            "prepare-015" => assert_eq!(response.unwrap()["isAlpine"], true),
            "prepare-017" => {
                assert_eq!(services.unwrap()[1]["ports"], json!({"6379": "6380"}));
                assert_ne!(services.unwrap()[0]["id"], services.unwrap()[1]["id"]);
            }
            "prepare-024" => assert!(response.is_none_or(|r| r["context"]["container"].is_null())),
            "script-001" => has("sh step"),
            "script-003" => has("python\n</__w/_temp/5790f82e-c1d3-4cff-aa3a-f4d46b0a18e8.py>"),
            "script-004" => {
                has("pwsh\n<-command>\n<. '/__w/_temp/5790f82e-c1d3-4cff-aa3a-f4d46b0a18e8.ps1'>");
            }
            "script-006" => has("sourced"),
            "script-008" => has("javascript"),
            "script-010" => {
                has("PATH=/__w/_tool/go/1.22/x64/bin:/github/home/.local/bin:/usr/local/sbin:");
            }
            "script-011" => has("PATH=/foo/bar:/baz:/usr/local/sbin:"),
            "script-013" => {
                for line in [
                    "EMPTY=\n",
                    "SPACE=a b\n",
                    "QUOTES=it's \"q\"\n",
                    "DOLLAR=$HOME `id`\n",
                    "BS=a\\b\\\n",
                    "NL=x\ny\n",
                    "PATH=/only/this\n",
                    "HOME=/root\n",
                    "INPUT_WHO-TO GREET=x\n",
                    "dotted.name=v\n",
                    "é=u\n",
                ] {
                    has(line);
                }
            }
            "script-017" => has("120000 bytes"),
            "container-002" => has("<hello world>\n<--flag>\n<>\n"),
            "container-003" => has("hi\n"),
            "container-004" => has("<Mona>\n"),
            "container-005" => has("local action\n"),
            _ => {}
        }
    }

    fn error_has(&self, said: &str) -> bool {
        let word = match self.file.as_str() {
            "bad-007-unknown-command.json" => "/command",
            "bad-012-response-file-missing.json" => "/nonexistent/dir/x.json",
            "bad-016-unknown-option.json" => "--no-such-option",
            "bad-018-port.json" => "99999",
            _ => "",
        };
        said.contains(word)
    }
}

#[test]
fn prepare_job_requests_have_the_expected_effects() {
    with_both_runtimes(POLICY, |installation| {
        let host = installation.host();
        let _local = HostRegistry::start(host, RegistryName::Local, None);
        let login = HubLogin("octocat", "ghs_tok \"quoted\" $x");
        let _ghcr = HostRegistry::start(host, RegistryName::Ghcr, Some(login));
        let mut runner = runner(installation, "runner-1");
        let before = LeftoverSnapshot::take(installation);
        for case in cases("prepare-") {
            // Docker Hub requires the password only in a separate test.
            if case.file == "prepare-005-registry-dockerhub.json" {
                continue;
            }
            let ended = if case.file == "prepare-016-digest.json" {
                call_by_digest(&case, &mut runner)
            } else {
                case.call(&mut runner)
            };
            case.check(ended);
            check_in_container(&case, &mut runner);
            runner.cleanup();
            before.check_live(installation, &case.file);
        }
    });
}

/// Requests the real digest of the image instead of the recorded one, which is made up.
fn call_by_digest(case: &RequestCase, runner: &mut GithubRunner<'_>) -> EndedCall {
    let host = runner.host();
    let mut skopeo = Command::new(program::find("skopeo"));
    let skopeo = skopeo.args(["inspect", "--format", "{{.Digest}}", "docker://node:22"]);
    let digest = host.run(skopeo).success();
    let made_up = format!("sha256:{}", "0".repeat(64));
    let request: Value =
        serde_json::from_str(&case.text(runner).replace(&made_up, digest.trim())).unwrap();
    runner.call("prepare_job", request["args"].clone())
}

/// Checks the effects of the request inside the job container.
fn check_in_container(case: &RequestCase, runner: &mut GithubRunner<'_>) {
    let name = case.file.split('-').take(2).collect::<Vec<_>>().join("-");
    match name.as_str() {
        "prepare-006" => {
            runner.run("touch /volume_mount/x /data/my_data/x /z/x").success();
            runner.run("touch /destination/directory/x").code(1);
            runner.run("touch /ro_data/x").code(1);
            assert!(runner.home().join("host/x").exists());
        }
        "prepare-007" => {
            let seen = runner.run(
                "id -u; hostname; echo $FOO; ulimit -n; grep db.local /etc/hosts; df /scratch | tail -1; \
                 grep -c 'nameserver 1.1.1.1' /etc/resolv.conf; grep Seccomp: /proc/self/status",
            );
            let seen = seen.success().stdout();
            for text in ["1001\nci.local\nbar\n", "127.0.0.1", "65536", "Seccomp:\t0"] {
                assert!(seen.contains(text), "{text:?} is not in {seen}");
            }
        }
        "prepare-013" => {
            let seen = runner.run("env").success().stdout();
            for line in [
                "EMPTY=\n",
                "QUOTES=it's \"q\"\n",
                "DOLLAR=$HOME `id`\n",
                "EQ=a=b=c\n",
                "UNI=żółć 🎉\n",
                "NL=line1\nline2\n",
                "PATH=/opt/bin:/usr/bin:/bin\n",
                "CI=false\n",
            ] {
                assert!(seen.contains(line), "{line:?} is not in {seen}");
            }
        }
        "prepare-014" => {
            let seen = runner.run("echo $HTTP_PROXY $no_proxy").success().stdout();
            assert_eq!(seen, "http://proxy:3128 localhost\n");
        }
        "prepare-018" => {
            runner.run("touch /__t/x").success();
            assert!(runner.home().join("hostedtoolcache/x").exists());
        }
        "prepare-021" => {
            // Without a health check the job does not wait for the service.
            let pong = runner.run(
                "until printf 'PING\\r\\nQUIT\\r\\n' | nc -w 60 cache 6379; do sleep 0.05; done",
            );
            assert_eq!(pong.success().stdout(), "+PONG\r\n");
        }
        "prepare-026" => {
            let first = runner.run("tr '\\0' ' ' </proc/1/cmdline; ps -o args | head -3");
            assert!(first.success().stdout().contains("sleep infinity"));
        }
        _ => {}
    }
}

#[test]
fn credentials_of_the_request_are_sent_to_docker_hub() {
    use oci_hooks_testsupport::host::TestHost;
    use oci_hooks_testsupport::runtime::TestRuntime;

    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, Some(HubLogin("octocat", "p")));
    let installation = HookInstallation::new(&host, TestRuntime::Runc, "");
    let mut runner = runner(&installation, "runner-1");
    let [case] = cases("prepare-005").try_into().unwrap_or_else(|_| panic!("one is recorded"));
    let ended = case.call(&mut runner);
    case.check(ended);
    runner.cleanup();
    // The image is in the store now, but still requires the login.
    let args = json!({"container": runner.job_container("octo/private:1"), "services": []});
    assert!(runner.call("prepare_job", args).failure().contains("octo/private"));
}

#[test]
fn run_script_step_requests_have_the_expected_effects() {
    with_each_runtime("", |installation| {
        let mut debian = runner(installation, "runner-1");
        debian.prepare(debian.job_container("node:22"), &[]);
        scripts(&debian);
        // The `PATH` of the step is searched for its program.
        debian.run("mkdir -p /only/this; ln -s /bin/busybox /only/this/sh").success();
        let mut alpine = runner(installation, "runner-2");
        alpine.prepare(alpine.job_container("alpine:3.20"), &[]);
        write(
            alpine.work().join("_actions/actions/checkout/v4/dist/index.js"),
            "console.log('javascript')",
        );
        for case in cases("script-") {
            let is_alpine = case.file == "script-008-node20-alpine.json";
            let runner = if is_alpine { &mut alpine } else { &mut debian };
            let ended = case.call(runner);
            case.check(ended);
        }
        debian.cleanup();
        alpine.cleanup();
    });
}

/// Writes the scripts that the requests refer to.
fn scripts(runner: &GithubRunner<'_>) {
    let script = "5790f82e-c1d3-4cff-aa3a-f4d46b0a18e8";
    write(
        runner.temp().join(format!("{script}.sh")),
        "echo sh step; /bin/tr '\\0' '\\n' </proc/$$/environ\n",
    );
    write(runner.temp().join(script), "echo sourced\n");
    write(runner.temp().join("a.sh"), "echo ${#BIG} bytes\n");
    write(runner.workspace().join("x"), "/bin/env\n");
}

#[test]
fn run_container_step_requests_have_the_expected_effects() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let before = LeftoverSnapshot::take(installation);
        write(
            runner.work().join("_actions/octo/docker-action/v1/Dockerfile"),
            "FROM alpine:3.20\nENTRYPOINT [\"printf\", \"<%s>\\\\n\"]\n",
        );
        write(
            runner.workspace().join(".github/actions/x/Dockerfile.ci"),
            "FROM alpine:3.20\nCMD [\"echo\", \"local action\"]\n",
        );
        for case in cases("container-") {
            let ended = case.call(&mut runner);
            case.check(ended);
            before.check_live(installation, &case.file);
        }
        runner.cleanup();
    });
}

#[test]
fn cleanup_job_requests_have_the_expected_effects() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for case in cases("cleanup-") {
            runner.prepare(runner.job_container("node:22"), &[]);
            let ended = case.call(&mut runner);
            case.check(ended);
            before.check(installation, &case.file);
            // A second cleanup finds nothing to do.
            case.check(case.call(&mut runner));
        }
    });
}

#[test]
fn invalid_requests_fail_with_a_reason_and_start_nothing() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for case in cases("bad-") {
            let ended = case.call(&mut runner);
            case.check(ended);
            before.check(installation, &case.file);
        }
    });
}
