//! Pod templates (ADR 0134 of GitHub's container hooks): init containers, sidecars, and what they share with a job.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::runner::setup::{is_logged, redis, shell_step, write};
use crate::runner::template::TemplateHost;

#[test]
fn init_containers_run_first_and_sidecars_run_for_the_whole_job() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "metadata: {annotations: {purpose: sidecar-test}}\n\
             spec:\n  terminationGracePeriodSeconds: 600\n  volumes: \n  \
             - {name: out, emptyDir: {}}\n  - {name: host, hostPath: {path: HOST}}\n  \
             initContainers:\n  - name: first\n    image: alpine:3.20\n    \
             command: [sh, -c, 'echo first >>/out/order']\n    \
             volumeMounts: [{name: out, mountPath: /out}]\n  - name: proxy\n    \
             image: alpine:3.20\n    restartPolicy: Always\n    \
             command: [sh, -c, 'echo proxy >>/out/order; mkdir /www; echo proxied >/www/index.html; \
             trap exit TERM; httpd -f -p 8080 -h /www & wait']\n    \
             volumeMounts: [{name: out, mountPath: /out}]\n    \
             ports: [{name: web, containerPort: 8080, hostPort: 18080}]\n    \
             startupProbe: {httpGet: {path: /, port: web}, periodSeconds: 1, timeoutSeconds: 600, \
             failureThreshold: 1000}\n    \
             readinessProbe: {tcpSocket: {port: 8080}, timeoutSeconds: 600}\n  - name: second\n    \
             image: alpine:3.20\n    command: [sh]\n    args: [-c, 'wget -q -O- localhost:8080 >>/out/order']\n    \
             volumeMounts: [{name: out, mountPath: /out}]\n  containers:\n  - name: beside\n    \
             image: alpine:3.20\n    command: [sh, -c, \
             'trap \"echo ended >>/host/log; exit\" TERM; echo beside >>/out/order; while :; do sleep 1 & wait $!; done']\n    \
             volumeMounts: [{name: out, mountPath: /out}, {name: host, mountPath: /host}, \
             {name: work, mountPath: /work}]\n    lifecycle:\n      \
             postStart: {exec: {command: [sh, -c, 'echo started >>/host/log; touch /work/repo/repo/mine']}}\n      \
             preStop: {exec: {command: [sh, -c, 'echo stopping >>/host/log']}}\n    \
             livenessProbe: {exec: {command: [grep, beside, /out/order]}, periodSeconds: 1, \
             timeoutSeconds: 600, failureThreshold: 1000}\n  \
             - name: $job\n    volumeMounts: [{name: out, mountPath: /out}]\n  \
             - name: $redis\n    command: [sh, -c, 'trap exit TERM; serve & wait']\n",
        );
        let mut runner = templated.runner();
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        runner.cleanup();
        fs::remove_file(templated.path("shared/log")).unwrap();

        let before = LeftoverSnapshot::take(templated.installation);
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let said = runner.run("cat /out/order; wget -q -O- localhost:8080; ls").success();
        assert_eq!(said.stdout(), "first\nproxy\nproxied\nbeside\nproxied\nmine\n");
        let listed = templated.installation.admin(&["ps"]).success();
        for name in ["proxy", "beside"] {
            assert!(listed.contains(name), "{listed}");
        }
        assert!(!listed.contains("first"), "{listed}");
        let published = SocketAddr::from(([127, 0, 0, 1], 18080));
        let answer = templated.installation.host().enter(|| {
            let mut stream = TcpStream::connect(published).unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        assert!(answer.ends_with("proxied\n"), "{answer}");
        runner.cleanup();
        let log = fs::read_to_string(templated.path("shared/log")).unwrap();
        assert_eq!(log, "started\nstopping\nended\n", "{}", templated.runtime);
        before.check(templated.installation, "a job with sidecars");
    });
}

#[test]
fn failing_init_container_fails_the_job_with_its_output() {
    TemplateHost::test_each_runtime("", |templated| {
        // The first job creates the files that stay on a host.
        templated.set(
            "spec:\n  volumes: [{name: m, emptyDir: {}}]\n  initContainers:\n  \
             - {name: fine, image: alpine:3.20, command: [touch, /m/x], \
             volumeMounts: [{name: m, mountPath: /m}]}\n",
        );
        let mut first = templated.runner();
        first.prepare(first.job_container("node:22"), &[redis()]);
        first.cleanup();
        let before = LeftoverSnapshot::take(templated.installation);
        templated.set(
            "spec:\n  volumes: [{name: m, emptyDir: {medium: Memory}}]\n  initContainers:\n  \
             - {name: broken, image: alpine:3.20, command: [sh, -c, 'echo no license; exit 3'], \
             volumeMounts: [{name: m, mountPath: /m}]}\n",
        );
        let args = json!({"container": first.job_container("node:22"), "services": [redis()]});
        let ended = first.start("prepare_job", args).wait();
        assert!(ended.log().contains("no license"), "{}", ended.log());
        let said = ended.failure();
        assert!(said.contains("init container broken: its program ended with code 3"), "{said}");
        before.check(templated.installation, "an init container that fails");
    });
}

#[test]
fn container_steps_have_their_own_template_and_sidecars() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  volumes: [{name: v, emptyDir: {}}]\n  containers:\n  - name: $job\n    \
             command: [sleep]\n    args: ['50000']\n    workingDir: /tmp\n    env: [{name: A, value: b}]\n    \
             volumeMounts: [{name: v, mountPath: /v}]\n  - name: web\n    image: nginx:alpine\n    \
             readinessProbe: {httpGet: {port: 80}, periodSeconds: 1, timeoutSeconds: 600, \
             failureThreshold: 1000}\n  \
             initContainers:\n  - {name: init, image: alpine:3.20, command: [touch, /v/made], \
             volumeMounts: [{name: v, mountPath: /v}]}\n",
        );
        let mut runner = templated.runner();
        let script = "echo $A; pwd; ls /v; wget -q -O- localhost; touch /v/again";
        let expected = "b\n/github/workspace\nmade\nhello from nginx\n";
        let (ended, _) = runner.container_step(shell_step(script));
        let said = ended.success().stdout();
        assert!(said.ends_with(expected), "{}: {said}", templated.runtime);

        // A job container without a command uses the template's command to stay alive.
        runner.prepare(runner.job_container("node:22"), &[]);
        let before = LeftoverSnapshot::take(templated.installation);
        let (ended, _) = runner.container_step(shell_step(script));
        let said = ended.success().stdout();
        assert!(said.ends_with(expected), "{said}");
        before.check(templated.installation, "a container step with a sidecar");
        let line = runner.run("tr '\\0' ' ' </proc/1/cmdline").success().stdout();
        assert_eq!(line.trim(), "sleep 50000");
        runner.cleanup();
    });
}

#[test]
fn processes_are_shared_if_the_template_requests_it() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  shareProcessNamespace: true\n  containers:\n  \
             - {name: side, image: alpine:3.20, command: [sleep, '4321']}\n  initContainers:\n  \
             - {name: init, image: alpine:3.20, command: [sh, -c, 'test $$$$ != 1']}\n",
        );
        // A started container executes its program a moment later.
        let said = templated.job(
            "until cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' | grep 'sleep 432[1] '; do sleep 0.1; done",
        );
        assert!(said.contains("sleep 4321 "), "{}: {said}", templated.runtime);
    });
}

#[test]
fn sidecars_of_services_alone_have_their_own_network() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  containers:\n  - name: web\n    image: nginx:alpine\n    \
             ports: [{containerPort: 80, hostPort: 18081}]\n  - name: beside\n    \
             image: alpine:3.20\n    command: [sleep, '1000']\n    \
             readinessProbe: {exec: {command: [wget, -q, -O, /dev/null, 'http://localhost']}, \
             timeoutSeconds: 600, failureThreshold: 1000}\n",
        );
        let mut runner = templated.runner();
        runner.prepare(json!(null), &[redis()]);
        runner.cleanup();
        let before = LeftoverSnapshot::take(templated.installation);
        runner.prepare(json!(null), &[redis()]);
        let page =
            templated.installation.host().shell("busybox wget -q -O- http://127.0.0.1:18081/");
        assert_eq!(page, "hello from nginx\n", "{}", templated.runtime);
        runner.cleanup();
        before.check(templated.installation, "services with sidecars");
    });
}

#[test]
fn unhealthy_sidecar_fails_the_job_with_its_output() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  volumes: [{name: host, hostPath: {path: HOST}}]\n  containers:\n  - name: side\n    \
             image: alpine:3.20\n    volumeMounts: [{name: host, mountPath: /host}]\n    \
             command: [sh, -c, 'echo out of order; exec sleep 1000']\n    startupProbe:\n      \
             {exec: {command: [test, -e, /host/logged]}, periodSeconds: 1, timeoutSeconds: 600, \
             failureThreshold: 1000}\n    readinessProbe:\n      \
             {httpGet: {path: /health, port: 9}, periodSeconds: 1, failureThreshold: 1}\n",
        );
        let runner = templated.runner();
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let call = runner.start("prepare_job", args);
        program::wait_until("the output of the sidecar", || {
            is_logged(templated.installation, "out of order")
        });
        write(templated.path("shared/logged"), "");
        let ended = call.wait();
        assert!(ended.log().contains("out of order"), "{}", ended.log());
        let said = ended.failure();
        assert!(!said.contains("sidecar side: sidecar side"), "{said}");
        assert!(said.contains("sidecar side is unhealthy"), "{said}");
        assert!(said.contains(":9/health does not answer"), "{said}");
    });
}

/// The attack of CVE-2021-25741 in Kubernetes.
#[test]
fn links_in_a_volume_do_not_lead_a_subpath_out_of_it() {
    TemplateHost::test_each_runtime("", |templated| {
        write(templated.path("shared/secret"), "of the host\n");
        templated.set(
            "spec:\n  volumes: [{name: v, emptyDir: {}}]\n  initContainers:\n  - name: evil\n    \
             image: alpine:3.20\n    volumeMounts: [{name: v, mountPath: /v}]\n    command: [sh, -c, \
             'ln -s / /v/root; ln -s HOST /v/abs; ln -s ../../../../../../../.. /v/up']\n  \
             containers:\n  - name: $job\n    volumeMounts:\n    \
             - {name: v, mountPath: /a, subPath: root/made}\n    \
             - {name: v, mountPath: /b, subPath: up/here}\n",
        );
        let said = templated.job("touch /a/x /b/x; ls -d /a/x /b/x");
        assert_eq!(said, "/a/x\n/b/x\n", "{}", templated.runtime);
        assert!(!std::path::Path::new("/made").exists() && !std::path::Path::new("/here").exists());

        templated.set(
            "spec:\n  volumes: [{name: v, emptyDir: {}}]\n  initContainers:\n  - name: evil\n    \
             image: alpine:3.20\n    volumeMounts: [{name: v, mountPath: /v}]\n    \
             command: [sh, -c, 'ln -s HOST /v/abs']\n  containers:\n  - name: $job\n    \
             volumeMounts: [{name: v, mountPath: /a, subPath: abs}]\n",
        );
        let said = templated.failure();
        assert!(!said.contains("of the host"), "{said}");
    });
}

#[test]
fn sidecar_images_are_pulled_with_the_secrets_of_the_template() {
    for &runtime in TestRuntime::selected(0) {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        let _ghcr =
            HostRegistry::start(&host, RegistryName::Ghcr, Some(HubLogin("user", "password")));
        let file = host.path().join("template.yaml");
        let secrets = host.path().join("secrets");
        let further = format!("[template]\nfile = {file:?}\nsecrets = {secrets:?}\n");
        let installation = HookInstallation::new(&host, runtime, &further);
        write(
            &file,
            "spec:\n  imagePullSecrets: [{name: ghcr}]\n  containers:\n  \
             - {name: side, image: 'ghcr.io/octo/private:1', command: [sleep, '1000']}\n",
        );
        let logins = json!({"auths": {"ghcr.io": {"username": "user", "password": "wrong"}}});
        write(secrets.join("ghcr/.dockerconfigjson"), &logins.to_string());
        let mut runner = crate::runner::setup::runner(&installation, "runner-1");
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let said = runner.start("prepare_job", args).wait().failure();
        assert!(said.contains("sidecar side"), "{said}");
        let logins = json!({"auths": {"ghcr.io": {"username": "user", "password": "password"}}});
        write(secrets.join("ghcr/.dockerconfigjson"), &logins.to_string());
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
    }
}

#[test]
fn killed_commands_with_a_template_leave_nothing_after_cleanup() {
    const ROUNDS: u32 = 6;
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  volumes: [{name: m, emptyDir: {medium: Memory}}, {name: d, emptyDir: {}}]\n  \
             initContainers:\n  - {name: init, image: alpine:3.20, command: [touch, /m/x], \
             volumeMounts: [{name: m, mountPath: /m}]}\n  containers:\n  \
             - {name: side, image: alpine:3.20, command: [sleep, '4321'], \
             volumeMounts: [{name: d, mountPath: /d, subPath: a}]}\n",
        );
        let mut runner = templated.runner();
        let start = std::time::Instant::now();
        runner.prepare(runner.job_container("node:22"), &[]);
        let took = start.elapsed();
        runner.cleanup();
        runner.container_step(shell_step("true")).0.success();
        let before = LeftoverSnapshot::take(templated.installation);
        for round in 0..ROUNDS {
            let after: Duration = took * (2 * round + 1) / (2 * ROUNDS);
            let args = json!({"container": runner.job_container("node:22"), "services": []});
            runner.start("prepare_job", args).kill_after(after);
            runner.cleanup();
            before.check(templated.installation, &format!("prepare_job {round}"));
            let step = shell_step("exec sleep 1000");
            runner.start_container_step(step).kill_after(after);
            runner.cleanup();
            before.check(templated.installation, &format!("run_container_step {round}"));
        }
    });
}
