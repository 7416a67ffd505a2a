//! Pods of jobs: names, options, volumes, health checks, and fields that templates cannot change.

use std::time::Duration;

use oci_hooks_files::quantity::{Age, Cpus};
use serde_json::{Value, json};

use super::{PodFixture, container, has_note, job_with, services, spec};

/// Returns a field of a container as JSON.
fn part(made: &super::PodManifest, name: &str, pointer: &str) -> Value {
    let json = serde_json::to_value(container(made, name)).unwrap();
    json.pointer(pointer).cloned().unwrap_or_default()
}

fn pod_value(made: &super::PodManifest, pointer: &str) -> Value {
    let json = serde_json::to_value(&made.pod).unwrap();
    json.pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn services_keep_all_names_and_container_names_are_valid() {
    let made = PodFixture::new().make_pod(&services(&[
        (
            "my_db",
            "postgres@sha256:1111111111111111111111111111111111111111111111111111111111111111",
            "--network-alias pg --name DB",
        ),
        ("job", "redis:7", ""),
    ]));
    let names: Vec<_> = made.services.iter().map(|service| service.container.as_str()).collect();
    assert_eq!(names, ["my-db", "job-1"]);
    let annotation = "/metadata/annotations/com.github.actions.service-containers";
    assert_eq!(pod_value(&made, annotation), "my-db job-1");
    let alone = json!({"services": [{"contextName": "db", "image": "postgres:16"}]});
    assert_eq!(pod_value(&PodFixture::new().make_pod(&alone), annotation), "db");
    assert_eq!(pod_value(&PodFixture::new().make_pod(&job_with("")), annotation), "");
    let aliases =
        json!([{"ip": "127.0.0.1", "hostnames": ["pg", "db", "postgres", "job", "redis"]}]);
    assert_eq!(pod_value(&made, "/spec/hostAliases"), aliases);
    // The invalid name is in the generated `/etc/hosts`, which all containers mount.
    let secret = made.secrets.last().unwrap();
    let hosts = String::from_utf8(secret.data.as_ref().unwrap()["hosts"].0.clone()).unwrap();
    let lines: Vec<_> = hosts.lines().collect();
    assert!(lines.contains(&"127.0.0.1\tmy_db") && lines.contains(&"127.0.0.1\tredis"), "{hosts}");
    let own = format!("127.0.1.1\t{}", made.pod.metadata.name.as_ref().unwrap());
    assert!(lines.contains(&own.as_str()), "{hosts}");
    assert_eq!(pod_value(&made, "/metadata/annotations/com.github.actions.service-names"), "my_db");
    for name in ["job", "my-db", "job-1"] {
        let mounts = container(&made, name).volume_mounts.iter().flatten();
        let hosts = mounts.filter(|mount| mount.mount_path == "/etc/hosts");
        assert_eq!(hosts.count(), 1, "{name}");
    }
    let volumes = spec(&made).volumes.iter().flatten();
    let mut names = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.clone());
    assert_eq!(names.next(), secret.metadata.name);
    assert_eq!(made.services[0].names, ["my_db", "pg", "DB", "postgres"]);
}

#[test]
fn variable_values_are_in_secrets_and_not_expanded() {
    let args = json!({"container": {
        "image": "node:22", "createOptions": "--env A=$(HOME) --env B=x --env NOTHING",
        "environmentVariables": {"B": "s3cret", "E": "", "1 bad": "x"},
        "entryPoint": "/bin/run", "entryPointArgs": ["'$(B)'"],
    }});
    let made = PodFixture::new().make_pod(&args);
    let text = serde_json::to_string(&made.pod).unwrap();
    assert!(!text.contains("s3cret") && !text.contains("$(HOME)"), "{text}");
    assert_eq!(part(&made, "job", "/args/3"), "$$(B)");
    assert_eq!(part(&made, "job", "/env/0/valueFrom/secretKeyRef/key"), "e0");
    assert!(has_note(&made, "\"1 bad\" is left out") && has_note(&made, "--env NOTHING"));
    let secret = &made.secrets[0];
    assert_eq!(secret.metadata.labels, made.pod.metadata.labels);
    assert_eq!(secret.metadata.owner_references, made.pod.metadata.owner_references);
    assert_eq!(pod_value(&made, "/metadata/ownerReferences/0/uid"), "uid-1");
}

#[test]
fn options_become_pod_fields() {
    let world =
        PodFixture::new().policy("[gpus]").kubernetes(|settings| settings.node_selectors = true);
    let options = "--memory 1g --memory-reservation 512m --cpus 1.5 --cpu-shares 512 --gpus 2 \
        --user 1000:1001 --group-add 7 --read-only --cap-add SYS_PTRACE --cap-drop ALL \
        --security-opt no-new-privileges --pull always --hostname Builder --add-host a.b:10.0.0.1 \
        --dns 10.0.0.2 --dns-search x.y --dns-option ndots:2 --sysctl net.core.somaxconn=9 \
        --platform linux/arm64 --label team=a --label node-selector.disk=ssd --workdir /w \
        --tmpfs /t:size=64m,noexec --shm-size 1g --health-cmd true --health-interval 1s";
    let made = world.make_pod(&job_with(options));
    let job = |pointer: &str| part(&made, "job", pointer);
    assert_eq!(
        job("/resources"),
        json!({
            "limits": {"memory": "1073741824", "cpu": "1500m", "nvidia.com/gpu": "2"},
            "requests": {"memory": "536870912", "cpu": "500m"},
        })
    );
    assert_eq!(
        job("/securityContext"),
        json!({
            "runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": true,
            "capabilities": {"add": ["SYS_PTRACE"], "drop": ["ALL"]},
            "allowPrivilegeEscalation": false,
        })
    );
    assert_eq!((job("/imagePullPolicy"), job("/workingDir")), (json!("Always"), json!("/w")));
    assert_eq!(job("/readinessProbe/exec/command"), json!(["/bin/sh", "-c", "true"]));
    assert_eq!(job("/readinessProbe/failureThreshold"), 3);
    let pod = |pointer: &str| pod_value(&made, pointer);
    assert_eq!(pod("/spec/hostname"), "builder");
    assert_eq!(pod("/spec/hostAliases"), json!([{"ip": "10.0.0.1", "hostnames": ["a.b"]}]));
    assert_eq!(pod("/spec/securityContext/supplementalGroups"), json!([7]));
    assert_eq!(
        pod("/spec/securityContext/sysctls"),
        json!([{"name": "net.core.somaxconn", "value": "9"}])
    );
    assert_eq!(
        pod("/spec/dnsConfig"),
        json!({
            "nameservers": ["10.0.0.2"], "searches": ["x.y"],
            "options": [{"name": "ndots", "value": "2"}],
        })
    );
    assert_eq!(pod("/spec/dnsPolicy"), "None");
    assert_eq!(
        pod("/spec/nodeSelector"),
        json!({"disk": "ssd", "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"})
    );
    assert_eq!(pod("/metadata/annotations/com.github.actions.label.team"), "a");
    let memory = spec(&made).volumes.iter().flatten().filter_map(|volume| {
        let empty_dir = volume.empty_dir.as_ref()?;
        empty_dir.medium.as_ref()?;
        empty_dir.size_limit.clone()
    });
    assert_eq!(memory.map(|size| size.0).collect::<Vec<_>>(), ["67108864", "1073741824"]);
    assert!(has_note(&made, "--tmpfs /t: noexec has no effect"));
}

#[test]
fn denied_host_ipc_becomes_a_large_dev_shm() {
    let world = PodFixture::new().policy("host-namespaces = [\"pid\"]");
    let made = world.make_pod(&job_with("--ipc=host --pid=host"));
    let mounts = part(&made, "job", "/volumeMounts");
    assert!(mounts.as_array().unwrap().iter().any(|mount| mount["mountPath"] == "/dev/shm"));
    assert_eq!(pod_value(&made, "/spec/hostPID"), true);
    assert_eq!(pod_value(&made, "/spec/hostIPC"), Value::Null);
}

#[test]
fn ineffective_options_are_reported_and_impossible_ones_rejected() {
    let options = "--ulimit core=0 --init --stop-timeout 5 --network none --rm";
    let mut args = services(&[("a", "redis", "--init"), ("b", "postgres", "")]);
    args["container"]["createOptions"] = options.into();
    let made = PodFixture::new().make_pod(&args);
    for option in ["ulimit", "stop-timeout", "network=none", "rm"] {
        assert!(has_note(&made, &format!("job container: --{option} has no effect: ")), "{option}");
    }
    assert!(has_note(&made, "job container, service a: --init has no effect: "));
    let world = PodFixture::new().policy("host-namespaces = [\"uts\"]");
    let made = world.make_pod(&job_with("--uts=host"));
    assert!(has_note(&made, "job container: --uts=host has no effect: "));
    let world = PodFixture::new();
    for (options, part) in [
        ("--privileged", "privileged = true"),
        ("--device /dev/kvm", "device plugins"),
        ("--device-cgroup-rule \"c 1:3 r\"", "device plugins"),
        ("--gpus all", "[policy.gpus]"),
        ("--label node-selector.a=b", "node-selectors = true"),
        ("--user node", "users and groups must be numeric ids"),
        ("-v /etc:/x", "bind-mounts = [\"/etc\"]"),
        ("--memory", "needs a value"),
    ] {
        let error = world.request_error(&job_with(options));
        assert!(error.starts_with("job container: ") && error.contains(part), "{error}");
    }
    let error = world.request_error(&json!({"container": {"image": "Node:22"}}));
    assert!(error.starts_with("job container: "), "{error}");
}

#[test]
fn maximums_apply_to_workflows_and_templates() {
    let world = PodFixture::new()
        .policy("[max]\nmemory = \"1GiB\"\ncpus = 2")
        .template("spec: {containers: [{name: $redis, resources: {limits: {memory: 8Gi}}}]}");
    let mut args = services(&[("redis", "redis", "")]);
    args["container"]["createOptions"] = "--memory 64g".into();
    let made = world.make_pod(&args);
    for name in ["job", "redis"] {
        let limits = json!({"memory": "1073741824", "cpu": "2"});
        assert_eq!(part(&made, name, "/resources/limits"), limits, "{name}");
    }
    assert!(has_note(&made, "job container: --memory 64GiB is lowered"));
    assert!(has_note(&made, "the pod template's limit of memory for container redis is lowered"));
}

#[test]
fn two_services_with_one_port_are_warned_of_with_both_names() {
    let mut args = services(&[("a", "redis", "--publish 80:6379"), ("b", "valkey", "")]);
    args["services"][1]["portMappings"] = json!(["81:6379"]);
    let warnings = PodFixture::new().make_pod(&args).warnings;
    let start = "service a and service b both name the port 6379/tcp";
    assert!(warnings.len() == 1 && warnings[0].starts_with(start), "{warnings:?}");
    let exposed = json!({"ExposedPorts": {"5432/tcp": {}}});
    let world = PodFixture::new().image("postgres:15", &exposed).image("postgres:16", &exposed);
    let made = world.make_pod(&services(&[("a", "postgres:15", ""), ("b", "postgres:16", "")]));
    assert!(has_note(&made, "service a and service b may both use the port 5432/tcp"));
}

#[test]
fn volumes_of_the_node_are_ignored_for_services_with_a_warning() {
    let made = PodFixture::new().make_pod(&services(&[("a", "redis", "-v /etc:/x -v data:/y")]));
    let mounts = container(&made, "a").volume_mounts.as_deref().unwrap_or_default();
    assert!(mounts.iter().all(|mount| mount.mount_path != "/x"), "{mounts:?}");
    assert!(mounts.iter().any(|mount| mount.mount_path == "/y"), "{mounts:?}");
    let start = "service a: the volume /etc:/x is ignored: ";
    assert!(made.warnings.len() == 1 && made.warnings[0].starts_with(start), "{:?}", made.warnings);
}

#[test]
fn limits_of_workflows_and_of_the_policy_have_small_requests() {
    let world = PodFixture::new()
        .policy("[max]\nmemory = \"1GiB\"")
        .template("spec: {containers: [{name: $b, resources: {limits: {cpu: 3}}}]}");
    let mut args = services(&[("a", "redis", "--cpus 0.02 --memory 32m"), ("b", "redis", "")]);
    args["container"]["createOptions"] = "--cpus 2 --memory-reservation 512m".into();
    let made = world.make_pod(&args);
    let requests = |name: &str| part(&made, name, "/resources/requests");
    assert_eq!(requests("job"), json!({"cpu": "50m", "memory": "536870912"}));
    assert_eq!(requests("a"), json!({"cpu": "20m", "memory": "33554432"}), "at most the limit");
    // The template's limit gets no request: Kubernetes requests it whole.
    assert_eq!(requests("b"), json!({"memory": "67108864"}));
    assert_eq!(requests("fs-init"), json!({"memory": "67108864"}));
    let whole = world.kubernetes(|settings| settings.cpu_request = Cpus::new(64.0).unwrap());
    let made = whole.make_pod(&args);
    assert_eq!(part(&made, "job", "/resources/requests/cpu"), "2");
}

#[test]
fn another_runner_image_has_the_program_in_its_path() {
    let world = PodFixture::new();
    let command = |world: &PodFixture| {
        let made = world.make_pod(&services(&[]));
        part(&made, "fs-init", "/command/0")
    };
    assert_eq!(command(&world), "/usr/local/bin/container-hook");
    let world = world.kubernetes(|settings| settings.runner_image = Some("other:1".to_owned()));
    assert_eq!(command(&world), "container-hook");
}

#[test]
fn mounted_runner_image_needs_no_init_container() {
    let world = PodFixture::new()
        .kubernetes(|settings| settings.image_volumes = Some(true))
        .template("spec: {containers: [{name: $job, command: [/bin/run, $(A)]}]}");
    let mount = json!({"sourceVolumePath": "/opt/a/../$e", "targetVolumePath": "/__e"});
    let made = world.make_pod(&json!({
        "container": {"image": "node:22", "systemMountVolumes": [mount]},
        "services": [{"image": "redis"}],
    }));
    assert_eq!(pod_value(&made, "/spec/initContainers"), Value::Null);
    let volumes = spec(&made).volumes.iter().flatten();
    let images = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    assert_eq!(images.collect::<Vec<_>>(), ["runner:1"]);
    let args = [
        "serve",
        "--externals",
        "/.oci-hooks/image/opt/$$e",
        "/__e",
        "/.oci-hooks/run",
        "/bin/run",
        "$(A)",
    ];
    assert_eq!(part(&made, "job", "/args"), json!(args));
    let sub_path = |name: &str, path: &str| {
        let mut mounts = container(&made, name).volume_mounts.iter().flatten();
        mounts.find(|mount| mount.mount_path == path).map(|mount| mount.sub_path.clone())
    };
    assert_eq!(sub_path("job", "/.oci-hooks/workspace"), Some(Some("repo/repo".to_owned())));
    assert_eq!(sub_path("redis", "/.oci-hooks/image"), None, "services do not see the image");
    // On a claim, directories that the runner has not created must not belong to root.
    let mut world = world.claim(None, "ReadWriteMany");
    let init = |world: &PodFixture| {
        pod_value(&world.make_pod(&job_with("")), "/spec/initContainers/0/name")
    };
    assert_eq!(init(&world), "fs-init");
    let dir = tempfile::tempdir().unwrap();
    for part in ["_temp/_github_home", "_temp/_github_workflow", "repo/repo"] {
        std::fs::create_dir_all(dir.path().join(part)).unwrap();
    }
    world.runner.temp = dir.path().join("_temp");
    world.runner.workspace = dir.path().join("repo/repo");
    assert_eq!(init(&world), Value::Null);
}

#[test]
fn health_checks_of_images_and_templates_become_probes() {
    let healthcheck = json!({"Healthcheck": {
        "Test": ["CMD", "ready", "$(X)"], "Interval": 5_000_000_000_u64, "Retries": 2,
    }});
    let world = PodFixture::new().image("redis", &healthcheck).image("node:22", &healthcheck);
    let made = world.make_pod(&services(&[("a", "redis", ""), ("b", "redis", "--no-healthcheck")]));
    assert_eq!(part(&made, "a", "/readinessProbe/exec/command"), json!(["ready", "$$(X)"]));
    assert_eq!(part(&made, "a", "/readinessProbe/failureThreshold"), 5);
    assert_eq!(part(&made, "b", "/readinessProbe"), Value::Null);
    // The job container does not run its image's program.
    assert_eq!(part(&made, "job", "/readinessProbe"), Value::Null);
    assert_eq!(part(&made, "a", "/livenessProbe"), Value::Null);
    let probe = "spec: {containers: [{name: $a, readinessProbe: {tcpSocket: {port: 1}, periodSeconds: 2}}]}";
    let made = world.template(probe).make_pod(&services(&[("a", "redis", "")]));
    assert_eq!(part(&made, "a", "/readinessProbe/tcpSocket/port"), 1);
    assert_eq!(part(&made, "a", "/readinessProbe/exec"), Value::Null);
}

#[test]
fn volumes_are_in_the_work_directory_or_live_as_long_as_the_pod() {
    let mount = |source: Option<&str>, target: &str, read_only: bool| json!({"sourceVolumePath": source, "targetVolumePath": target, "readOnly": read_only});
    let args = json!({
        "container": {"image": "node:22", "userMountVolumes": [
            mount(Some("/home/runner/_work/repo/data"), "/data", true),
            mount(Some("cache"), "/cache", false), mount(None, "/own", false),
            mount(Some("/var/cache/jobs/a"), "/a", true), mount(Some("/var/cache/jobs"), "/b", false),
        ]},
        "services": [{"contextName": "db", "image": "redis", "userMountVolumes": [
            mount(Some("cache"), "/c", false),
        ]}],
    });
    let world = PodFixture::new().policy("bind-mounts = [\"/var/cache/jobs\"]");
    let made = world.make_pod(&args);
    let of = |name: &str, path: &str| {
        let mounts = container(&made, name).volume_mounts.iter().flatten();
        let mut found = mounts.filter(|mount| mount.mount_path == path);
        found.next().cloned().unwrap()
    };
    let data = of("job", "/data");
    assert_eq!((data.name.as_str(), data.sub_path.as_deref()), ("work", Some("repo/data")));
    assert_eq!(data.read_only, Some(true));
    assert_eq!(of("job", "/cache").name, of("db", "/c").name);
    assert_ne!(of("job", "/own").name, of("job", "/cache").name);
    assert_eq!(of("job", "/a").name, of("job", "/b").name);
    assert_eq!(of("job", "/a").sub_path.as_deref(), Some("a"));
    let volumes = spec(&made).volumes.iter().flatten();
    let paths = volumes.filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()));
    assert_eq!(paths.collect::<Vec<_>>(), ["/var/cache/jobs"]);
    assert!(has_note(&made, "job container: the volume cache is empty at first"));
    let args = container(&made, "fs-init").args.clone().unwrap();
    assert!(args.iter().any(|arg| arg == "/__w/repo/data"), "{args:?}");
}

#[test]
fn claim_is_mounted_at_the_runners_work_directory() {
    let world = PodFixture::new().claim(Some("runners/1"), "ReadWriteOnce");
    let made = world.make_pod(&job_with(""));
    let mounts = container(&made, "job").volume_mounts.clone().unwrap();
    let sub_path = |path: &str| {
        let mount = mounts.iter().find(|mount| mount.mount_path == path).unwrap();
        (mount.name.clone(), mount.sub_path.clone().unwrap())
    };
    assert_eq!(sub_path("/__w"), ("work".to_owned(), "runners/1".to_owned()));
    assert_eq!(sub_path("/github/home").1, "runners/1/_temp/_github_home");
    let volumes = spec(&made).volumes.clone().unwrap();
    let work = volumes.iter().find(|volume| volume.name == "work").unwrap();
    assert_eq!(work.persistent_volume_claim.as_ref().unwrap().claim_name, "runner-1-work");
    let node = json!([{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]);
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(pod_value(&made, &format!("{required}/nodeSelectorTerms/0/matchFields")), node);
    assert_eq!(made.work, super::super::manifest::WorkVolume::Claim);

    let terms = "spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
        {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}, \
        {matchExpressions: [{key: b, operator: Exists}]}]}}}}";
    let made = world.template(terms).make_pod(&job_with(""));
    for at in 0..2 {
        let fields = pod_value(&made, &format!("{required}/nodeSelectorTerms/{at}/matchFields"));
        assert_eq!(fields, node);
    }

    let made = PodFixture::new().claim(None, "ReadWriteMany").make_pod(&job_with(""));
    assert_eq!(pod_value(&made, required), Value::Null);
    // Only the runner's pod can use the claim: files are copied.
    let world = PodFixture::new().claim(None, "ReadWriteOncePod");
    assert_eq!(world.make_pod(&job_with("")).work, super::super::manifest::WorkVolume::Copy);
    let world = world.kubernetes(|settings| settings.work = super::WorkTransport::Claim);
    assert!(world.request_error(&job_with("")).contains("ReadWriteOncePod"));
    let world =
        PodFixture::new().kubernetes(|settings| settings.work = super::WorkTransport::Claim);
    assert!(world.request_error(&job_with("")).contains("ACTIONS_RUNNER_CLAIM_NAME"));
}

#[test]
fn template_cannot_remove_fields_of_the_hook() {
    let text = "metadata:\n  labels: {app.kubernetes.io/managed-by: me, runner-pod: you, team: a}\n  \
        annotations: {com.github.actions.role: boss, x: y}\nspec:\n  automountServiceAccountToken: null\n  \
        restartPolicy: null\n  securityContext: {runAsUser: 5}\n  hostAliases: [{ip: 10.0.0.9, hostnames: [redis]}]\n  \
        imagePullSecrets: [{name: mine}]\n  activeDeadlineSeconds: 50\n  containers:\n  \
        - name: $job\n    command: [run, $(A)]\n  - name: $cache\n    args: [--x]\n";
    let mut world = PodFixture::new()
        .template(text)
        .kubernetes(|settings| settings.deadline = Some(Age(Duration::from_secs(3600))));
    world.own.pull_secrets = vec!["of-runner".to_owned(), "mine".to_owned()];
    let mut args = services(&[("redis", "redis", "--network-alias cache")]);
    args["container"]["registry"] = json!({"username": "u", "password": "p4ss"});
    let made = world.make_pod(&args);
    let pod = |pointer: &str| pod_value(&made, pointer);
    let labels =
        json!({"app.kubernetes.io/managed-by": "oci-hooks", "runner-pod": "runner-1", "team": "a"});
    assert_eq!(pod("/metadata/labels"), labels);
    assert_eq!(pod("/metadata/annotations/com.github.actions.role"), "job");
    assert_eq!(pod("/metadata/annotations/x"), "y");
    assert!(made.notes.iter().any(|note| note.contains("template.yaml:2:")
        && note.ends_with(
            "the label app.kubernetes.io/managed-by has no effect: it is reserved for the hook"
        )));
    assert!(has_note(
        &made,
        "the annotation com.github.actions.role has no effect: it is reserved"
    ));
    assert_eq!(pod("/spec/automountServiceAccountToken"), false);
    assert_eq!(pod("/spec/restartPolicy"), "Never");
    assert_eq!(pod("/spec/activeDeadlineSeconds"), 50);
    assert_eq!(pod("/spec/securityContext/runAsUser"), 5);
    assert_eq!(pod("/spec/securityContext/fsGroup"), 1001);
    assert_eq!(
        pod("/spec/hostAliases"),
        json!([{"ip": "10.0.0.9", "hostnames": ["redis"]}, {"ip": "127.0.0.1", "hostnames": ["cache"]}])
    );
    let secrets = spec(&made).image_pull_secrets.iter().flatten();
    let secrets: Vec<_> = secrets.map(|secret| secret.name.as_str()).collect();
    assert!(secrets[0].starts_with("runner-1-secret-") && secrets[1..] == ["mine", "of-runner"]);
    assert!(!serde_json::to_string(&made.pod).unwrap().contains("p4ss"));
    assert_eq!(
        part(&made, "job", "/command"),
        json!(["/.oci-hooks/image/usr/libexec/oci-hooks/agent"])
    );
    let args = json!(["serve", "/.oci-hooks/run", "run", "$(A)"]);
    assert_eq!(part(&made, "job", "/args"), args);
    assert!(has_note(&made, "the command of $job runs in addition to the steps"));
    assert_eq!(part(&made, "redis", "/args"), json!(["--x"]));
}

#[test]
fn templates_find_services_by_any_of_their_names() {
    let args = services(&[("db", "redis", "--network-alias alias"), ("other", "redis", "")]);
    for (entry, container) in
        [("db", "db"), ("alias", "db"), ("redis-0", "db"), ("redis-1", "other"), ("other", "other")]
    {
        let template = format!("spec: {{containers: [{{name: ${entry}, stdin: true}}]}}");
        let made = PodFixture::new().template(&template).make_pod(&args);
        assert_eq!(part(&made, container, "/stdin"), true, "{entry}");
    }
}

#[test]
fn native_sidecars_and_device_resources_of_a_template_are_kept() {
    let template = "spec:\n  initContainers: [{name: dind, image: docker, restartPolicy: Always}]\n  \
        containers: [{name: $job, resources: {limits: {amd.com/gpu: 1}}}]\n";
    let made = PodFixture::new().template(template).make_pod(&job_with(""));
    assert_eq!(part(&made, "dind", "/restartPolicy"), "Always");
    let inits: Vec<_> =
        spec(&made).init_containers.iter().flatten().map(|one| one.name.as_str()).collect();
    assert_eq!(inits, ["fs-init", "dind"], "what fills the volumes is first");
    assert_eq!(part(&made, "job", "/resources/limits/amd.com~1gpu"), "1");
}

#[test]
fn pod_of_services_alone_has_no_agent() {
    let made = PodFixture::new().make_pod(&json!({"services": [
        {"contextName": "db", "image": "redis", "portMappings": ["6379"]},
    ]}));
    assert!(spec(&made).init_containers.is_none() && made.ports.is_empty());
    assert_eq!(made.services[0].ports["6379"], "6379");
    let volumes: Vec<_> =
        spec(&made).volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["externals", "github", "work"]);
}
