//! Pod templates (ADR 0134 of GitHub's container hooks): their effects inside the containers.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::runner::setup::{redis, runner, shell_step, write};

/// A host whose jobs use a template.
pub(crate) struct TemplateHost<'a> {
    pub(crate) installation: &'a HookInstallation<'a>,
    pub(crate) runtime: TestRuntime,
}

impl TemplateHost<'_> {
    /// Calls a test for each runtime, with additional settings; in nextest's `gate` profile, for one runtime.
    pub(crate) fn test_each_runtime(further: &str, test: impl Fn(&TemplateHost<'_>)) {
        for &runtime in TestRuntime::selected(0) {
            let host = TestHost::new();
            let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
            let here = |name: &str| host.path().join(name);
            let settings = format!(
                "[template]\nfile = {:?}\nconfig-maps = {:?}\nsecrets = {:?}\n\
                 seccomp-profiles = {:?}\n[template.runtime-classes]\nother = {:?}\n{further}",
                here("template.yaml"),
                here("config-maps"),
                here("secrets"),
                here("seccomp"),
                here("other/crun"),
            );
            let installation = HookInstallation::new(&host, runtime, &settings);
            test(&TemplateHost { installation: &installation, runtime });
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.installation.host().path().join(name)
    }

    pub(crate) fn runner(&self) -> GithubRunner<'_> {
        runner(self.installation, "runner-1")
    }

    /// Writes the template, with `HOST` replaced by a directory of the host.
    pub(crate) fn set(&self, template: &str) {
        let host = self.path("shared");
        fs::create_dir_all(&host).unwrap();
        write(self.path("template.yaml"), &template.replace("HOST", host.to_str().unwrap()));
    }

    /// Runs a job, and returns the output of its step.
    #[track_caller]
    pub(crate) fn job(&self, script: &str) -> String {
        let mut runner = self.runner();
        runner.prepare(runner.job_container("node:22"), &[]);
        let said = runner.run(script).success().stdout();
        runner.cleanup();
        said
    }

    /// Runs a job that must fail, and returns the error.
    #[track_caller]
    pub(crate) fn failure(&self) -> String {
        let runner = self.runner();
        let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
        runner.start("prepare_job", args).wait().failure()
    }
}

#[test]
fn template_variables_follow_those_of_the_workflow() {
    TemplateHost::test_each_runtime("", |templated| {
        write(templated.path("config-maps/app/COLOR"), "red");
        write(templated.path("config-maps/app/SIZE"), "7");
        write(templated.path("secrets/login/token"), "s3cret");
        templated.set(
            "metadata: {labels: {team: builds}, annotations: {purpose: test}}\n\
             spec:\n  containers:\n  - name: $job\n    workingDir: /tmp\n    envFrom:\n    \
             - {prefix: APP_, configMapRef: {name: app}}\n    \
             - {secretRef: {name: none, optional: true}}\n    \
             resources: {limits: {memory: 512Mi, cpu: 1500m}}\n    env:\n    \
             - {name: A, value: '1'}\n    \
             - {name: B, value: '$(A)-$(APP_COLOR)-$(HOME)-$$(A)-$(NONE)'}\n    \
             - {name: EMPTY}\n    - {name: FROM_WORKFLOW, value: template}\n    \
             - {name: SIZE, valueFrom: {configMapKeyRef: {name: app, key: SIZE}}}\n    \
             - {name: TOKEN, valueFrom: {secretKeyRef: {name: login, key: token}}}\n    \
             - {name: NONE, valueFrom: {secretKeyRef: {name: login, key: x, optional: true}}}\n    \
             - {name: TEAM, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['team']\"}}}\n    \
             - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}\n    \
             - {name: NODE_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}\n    \
             - name: MEBIBYTES\n      valueFrom:\n        \
             resourceFieldRef: {resource: limits.memory, divisor: 1Mi}\n",
        );
        let mut runner = templated.runner();
        let env = json!({"HOME": "/github/home", "FROM_WORKFLOW": "workflow", "KEPT": "$(A)"});
        let container =
            merge(runner.job_container("node:22"), json!({"environmentVariables": env}));
        runner.prepare(container, &[]);
        let script = "echo \"$A|$B|$EMPTY|$FROM_WORKFLOW|$KEPT|$APP_COLOR|$SIZE|$TOKEN|$TEAM\"; \
                      echo \"${NONE-unset} $MEBIBYTES $GITHUB_ACTIONS\"; ip -o addr | \
                      grep -q \" $POD_IP/\" && echo \"${NODE_IP%.*} ${POD_IP%.*}\"";
        let said = runner.run(script).success().stdout();
        runner.cleanup();
        let b = "1-red-/github/home-$(A)-$(NONE)";
        let expected = format!("1|{b}||template|$(A)|red|7|s3cret|builds\nunset 512 true\n");
        assert!(said.starts_with(&expected), "{}: {said}", templated.runtime);
        let (host, pod) = said.lines().last().unwrap().split_once(' ').unwrap();
        assert!(!host.is_empty() && host == pod, "{said}");
    });
}

#[test]
fn template_volumes_have_their_modes_and_are_removed_with_the_job() {
    TemplateHost::test_each_runtime("", |templated| {
        write(templated.path("config-maps/app/a.conf"), "a = 1\n");
        write(templated.path("config-maps/app/b.conf"), "b = 2\n");
        write(templated.path("secrets/login/token"), "s3cret");
        write(templated.path("shared/cache/file"), "from the host\n");
        templated.set(
            "metadata: {labels: {team: builds}}\n\
             spec:\n  securityContext: {fsGroup: 1234}\n  volumes:\n  \
             - {name: cache, hostPath: {path: HOST/cache, type: Directory}}\n  \
             - {name: made, hostPath: {path: HOST/made/deep, type: DirectoryOrCreate}}\n  \
             - {name: scratch, emptyDir: {}}\n  \
             - {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}\n  \
             - {name: config, configMap: {name: app, items: [{key: a.conf, path: x/a, mode: 0o400}]}}\n  \
             - {name: secret, secret: {secretName: login, defaultMode: 0o600}}\n  \
             - name: all\n    projected:\n      sources:\n      - {configMap: {name: app}}\n      \
             - {secret: {name: login, items: [{key: token, path: t}]}}\n      \
             - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}\n  \
             containers:\n  - name: $job\n    env: [{name: DIR, value: sub}]\n    volumeMounts:\n    \
             - {name: cache, mountPath: /cache, readOnly: true}\n    \
             - {name: made, mountPath: /made, subPathExpr: $(DIR)/dir}\n    \
             - {name: scratch, mountPath: /scratch}\n    \
             - {name: scratch, mountPath: /part, subPath: new/part}\n    \
             - {name: memory, mountPath: /memory}\n    - {name: config, mountPath: /config}\n    \
             - {name: secret, mountPath: /secret}\n    - {name: all, mountPath: /all}\n    \
             - {name: work, mountPath: /again, subPath: repo/repo}\n",
        );
        let before = LeftoverSnapshot::take(templated.installation);
        let said = templated.job(
            "cat /cache/file; ! touch /cache/x 2>/dev/null || echo writable\n\
             touch /made/file /scratch/top /part/below /again/in-workspace\n\
             ls /scratch/new/part; stat -c '%a %g' /scratch /part\n\
             df -k /memory | tail -1 | awk '{print $2}'; stat -f -c %T /memory\n\
             cat /config/x/a; ls /config; stat -c %a /config/x/a /secret/token\n\
             cat /secret/token; echo; ls /all; cat /all/labels; echo; cat /all/t; echo\n\
             ! touch /config/new 2>/dev/null || echo writable; id -G",
        );
        let expected = "from the host\nbelow\n2777 1234\n2777 1234\n8192\ntmpfs\na = 1\nx\n440\n640\n\
                        s3cret\na.conf\nb.conf\nlabels\nt\nteam=\"builds\"\ns3cret\n";
        let (said, groups) = said.trim_end().rsplit_once('\n').unwrap();
        assert_eq!(format!("{said}\n"), expected, "{}", templated.runtime);
        assert!(groups.split(' ').any(|group| group == "1234"), "{groups}");
        assert!(templated.path("shared/made/deep/sub/dir/file").exists());
        assert!(templated.path("runner-1/_work/repo/repo/in-workspace").exists());
        before.check_live(templated.installation, "a job with volumes");
        let left = fs::read_dir(templated.installation.store().join("pods")).unwrap().count();
        assert_eq!(left, 0, "volumes of the job");
    });
}

#[test]
fn privileges_and_limits_match_the_template() {
    TemplateHost::test_each_runtime("", |templated| {
        let profile = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdirat", "mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
        });
        write(templated.path("seccomp/no-mkdir.json"), &profile.to_string());
        templated.set(
            "spec:\n  securityContext:\n    runAsUser: 1000\n    supplementalGroups: [4321]\n    \
             sysctls: [{name: net.core.somaxconn, value: '99'}]\n    \
             seccompProfile: {type: Localhost, localhostProfile: no-mkdir.json}\n  containers:\n  \
             - name: $job\n    securityContext:\n      runAsUser: 1001\n      runAsGroup: 2002\n      \
             runAsNonRoot: true\n      readOnlyRootFilesystem: true\n      procMount: Unmasked\n      \
             capabilities: {add: [SYS_TIME], drop: [ALL]}\n    resources:\n      \
             limits: {memory: 256Mi, cpu: 500m}\n      requests: {cpu: 250m, memory: 64Mi}\n",
        );
        let said = templated.job(
            "id -u; id -g; id -G; ! touch /x 2>/dev/null && echo read-only\n\
             cat /proc/sys/net/core/somaxconn; ! mkdir /tmp/x 2>/dev/null && echo filtered\n\
             grep CapBnd /proc/self/status; grep NoNewPrivs /proc/self/status\n\
             cat /proc/self/mountinfo | grep -c ' /proc/' || true",
        );
        let lines: Vec<_> = said.lines().collect();
        let expected = ["1001", "2002", "2002 4321", "read-only", "99", "filtered"];
        assert_eq!(&lines[..6], expected, "{}: {said}", templated.runtime);
        assert_eq!(&lines[6..], ["CapBnd:\t0000000002000000", "NoNewPrivs:\t0", "0"], "{said}");

        templated.set(
            "spec:\n  containers:\n  - name: $job\n    securityContext: \
             {allowPrivilegeEscalation: true, seccompProfile: {type: Unconfined}}\n    \
             resources: {limits: {memory: 256Mi, cpu: 500m}, requests: {cpu: 250m}}\n",
        );
        let said = templated.job(
            "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; cd /sys/fs/cgroup\n\
             cat memory.max memory/memory.limit_in_bytes 2>/dev/null || true\n\
             cat cpu.max cpu/cpu.cfs_quota_us 2>/dev/null || true",
        );
        let lines: Vec<_> = said.lines().collect();
        let cpu = if lines[3].contains(' ') { "50000 100000" } else { "50000" };
        let expected = ["NoNewPrivs:\t0", "Seccomp:\t0", "268435456", cpu];
        assert_eq!(lines, expected, "{}", templated.runtime);

        templated.set("spec: {securityContext: {runAsNonRoot: true}}");
        let said = templated.failure();
        assert!(said.contains("must not run as root"), "{said}");
    });
}

#[test]
fn names_match_the_template() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  hostname: builder\n  subdomain: ci\n  setHostnameAsFQDN: true\n  \
             hostAliases: [{ip: 10.9.8.7, hostnames: [registry.local, mirror]}]\n  \
             dnsPolicy: None\n  dnsConfig:\n    nameservers: [192.0.2.53]\n    \
             searches: [corp.example]\n    options: [{name: ndots, value: '3'}, {name: edns0}]\n",
        );
        let said = templated.job(
            "hostname; grep 10.9.8.7 /etc/hosts; cat /etc/resolv.conf; \
                                  grep -o 'builder.ci.*' /etc/hosts | sort -u",
        );
        let expected = "builder.ci\n10.9.8.7\tregistry.local mirror\nnameserver 192.0.2.53\n\
                        search corp.example\noptions ndots:3 edns0\nbuilder.ci builder\n";
        assert_eq!(said, expected, "{}", templated.runtime);
    });
}

#[test]
fn services_use_fields_of_the_template() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set(
            "spec:\n  containers:\n  - name: $redis\n    env: [{name: MODE, value: template}]\n    \
             ports: [{containerPort: 6380, hostPort: 16380}]\n    \
             readinessProbe: {tcpSocket: {port: 6379}, periodSeconds: 1, \
             timeoutSeconds: 600, failureThreshold: 1000}\n    \
             command: [sh, -c, 'echo mode $MODE; exec serve']\n  \
             - {name: $none, env: [{name: A, value: b}]}\n",
        );
        let mut runner = templated.runner();
        let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
        let ended = runner.call("prepare_job", args).success();
        assert!(ended.log().contains("$none has no effect"), "{}", ended.log());
        let ports = &ended.response.as_ref().unwrap()["context"]["services"][0]["ports"];
        assert_eq!(ports["6380"], "16380", "{ports}");
        program::wait_until("the output of the service", || {
            let said = templated.installation.admin(&["logs", "redis"]).success();
            said.contains("mode template")
        });
        let pong = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 60 redis 6379");
        assert_eq!(pong.success().stdout(), "+PONG\r\n");
        runner.cleanup();
    });
}

#[test]
fn invalid_template_creates_nothing() {
    TemplateHost::test_each_runtime("", |templated| {
        templated.set("{}");
        templated.job("true");
        let socket = templated.path("shared/docker.sock");
        let _socket = UnixListener::bind(&socket).unwrap();
        let before = LeftoverSnapshot::take(templated.installation);
        let job = |field: &str| format!("spec:\n  containers:\n  - name: $job\n    {field}\n");
        for (template, expected) in [
            ("".to_owned(), "template.yaml"),
            ("spec: [".to_owned(), "template.yaml:"),
            (job("comand: [a]"), ":4:5"),
            (
                job("securityContext: {privileged: true}"),
                "/spec/containers/0/securityContext/privileged: amounts to root on",
            ),
            (
                job("resources: {limits: {nvidia.com/gpu: 1}}"),
                "/spec/containers/0/resources/limits/nvidia.com~1gpu: there is no device plugin",
            ),
            (job("volumeMounts: [{name: none, mountPath: /x}]"), "/volumeMounts/"),
            (job("imagePullPolicy: Sometimes"), "/spec/containers/0/imagePullPolicy: "),
            (
                job("livenessProbe: {httpGet: {port: web}}"),
                "/spec/containers/0/livenessProbe/httpGet/port: ",
            ),
            (job("readinessProbe: {grpc: {port: 1}}"), "use exec or tcpSocket"),
            (
                job("env: [{name: A, valueFrom: {secretKeyRef: {name: none, key: a}}}]"),
                "set `secrets` under [template]",
            ),
            (job("volumeMounts: [{name: work, mountPath: /__w/_temp}]"), "directory of the runner"),
            ("spec: {hostNetwork: true}".to_owned(), "host-namespaces = [\"network\"]"),
            ("spec: {hostPID: true}".to_owned(), "/spec/hostPID: "),
            (
                "spec: {restartPolicy: Always}".to_owned(),
                "/spec/restartPolicy: containers are not restarted",
            ),
            ("spec: {activeDeadlineSeconds: 5}".to_owned(), "timeout-minutes"),
            ("spec: {runtimeClassName: kata}".to_owned(), "[template.runtime-classes]"),
            (
                "spec: {securityContext: {sysctls: [{name: kernel.pid_max, value: '9'}]}}"
                    .to_owned(),
                "kernel.pid_max",
            ),
            (
                "spec: {securityContext: {runAsUser: -1}}".to_owned(),
                "/spec/securityContext/runAsUser: ",
            ),
            (
                "metadata: {annotations: {com.github.actions.role: job}}".to_owned(),
                "is reserved for container-hook",
            ),
            (
                "spec: {volumes: [{name: v, nfs: {server: s, path: /}}]}".to_owned(),
                "/spec/volumes/3/nfs: ",
            ),
            (
                "spec: {volumes: [{name: v, hostPath: {path: HOST/none}}]}".to_owned(),
                "does not exist",
            ),
            (
                "spec: {volumes: [{name: v, hostPath: {path: HOST/docker.sock, type: Socket}}]}"
                    .to_owned(),
                "bind-mounts = [",
            ),
            (
                "spec: {volumes: [{name: v, configMap: {name: app, defaultMode: 644}}]}".to_owned(),
                "0o644",
            ),
            ("spec:\n  volumes: [{name: v, emptyDir: {}}]\n  containers: [{name: $job, volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]}]".to_owned(), "mountPropagation: makes mounts of the container appear"),
            ("spec: {dnsPolicy: None}".to_owned(), "dnsConfig.nameservers"),
        ] {
            templated.set(&template);
            let said = templated.failure();
            assert!(said.contains("template.yaml"), "{template}: {said}");
            assert!(said.contains(expected), "{template}: {said}");
            before.check(templated.installation, &template);
        }
        // A template that becomes invalid does not affect a running job.
        templated.set("{}");
        let mut runner = templated.runner();
        runner.prepare(runner.job_container("node:22"), &[]);
        for spoil in ["chmod 666", "rm"] {
            let file = templated.path("template.yaml");
            templated.installation.host().shell(&format!("{spoil} {}", file.display()));
            runner.run("true").success();
            let said = runner.container_step(shell_step("true")).0.failure();
            assert!(said.contains("template.yaml"), "{said}");
        }
        runner.cleanup();
        before.check(templated.installation, "a template that went bad");
        assert!(templated.failure().contains("template.yaml"));
    });
}

#[test]
fn policy_grants_host_access_to_templates() {
    let policy = "[policy]\nprivileged = true\nhost-namespaces = [\"network\", \"pid\"]\n\
                  bind-mounts = [\"/\"]\n";
    TemplateHost::test_each_runtime(policy, |templated| {
        let host = templated.installation.host();
        let _socket = UnixListener::bind(templated.path("shared.sock")).unwrap();
        templated.set("spec: {hostNetwork: true, hostPID: true}");
        let namespaces = "readlink /proc/self/ns/net; readlink /proc/self/ns/pid";
        assert_eq!(templated.job(namespaces), host.shell(namespaces));
        templated
            .set("spec:\n  containers:\n  - {name: $job, securityContext: {privileged: true}}\n");
        let said = templated.job("grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status");
        assert_eq!(said, "NoNewPrivs:\t0\nSeccomp:\t0\n");
    });
}

#[test]
fn hook_runs_for_an_annotation_of_a_template() {
    for &runtime in TestRuntime::selected(0) {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        let (hooks, file) = (host.path().join("hooks.d"), host.path().join("template.yaml"));
        let further = format!("[hooks]\ndirs = [{hooks:?}]\n");
        let installation = HookInstallation::new(&host, runtime, &further);
        let (script, seen) = (host.path().join("note"), host.path().join("seen"));
        program::write_program(
            &script,
            &format!("#!/bin/sh\ncat >/dev/null\necho $1 >>{}\n", seen.display()),
        );
        for (name, key) in [
            ("gpu", "^example\\\\.com/gpu$"),
            ("team", "^com\\\\.github\\\\.actions\\\\.label\\\\.team$"),
        ] {
            let hook = format!(
                "{{\"version\": \"1.0.0\", \"hook\": {{\"path\": {script:?}, \
                 \"args\": [\"note\", {name:?}], \"env\": [\"PATH=/usr/bin:/bin\"]}}, \
                 \"when\": {{\"annotations\": {{\"{key}\": \".*\"}}}}, \
                 \"stages\": [\"createRuntime\"]}}"
            );
            write(hooks.join(format!("{name}.json")), &hook);
        }
        write(&file, "metadata: {annotations: {example.com/gpu: all}, labels: {team: builds}}\n");
        let mut runner = runner(&installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        assert!(!seen.exists(), "{runtime}: there is no template yet");
        let file = file.display().to_string();
        runner.variables.push(("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE".to_owned(), file));
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let seen = fs::read_to_string(&seen).unwrap();
        let mut lines: Vec<_> = seen.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["gpu", "team"], "{runtime}");
    }
}

#[test]
fn runtime_class_selects_another_runtime() {
    TemplateHost::test_each_runtime("", |templated| {
        let other = templated.path("other/crun");
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        let log = templated.path("calls");
        let runtime = TestRuntime::Crun.command();
        let script = format!(
            "#!/bin/sh\necho called >>{}\nexec {} \"$@\"\n",
            log.display(),
            runtime.get_program().to_str().unwrap()
        );
        program::write_program(&other, &script);
        templated.set("spec: {runtimeClassName: other}");
        assert_eq!(templated.job("echo in it"), "in it\n");
        assert!(fs::read_to_string(log).unwrap().contains("called"));
    });
}
