//! `oci-hooks explain NAME`, with fake engines.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::cli::env::{CommandOutput, HookEnv, golden};

const ID: &str = "3f2a97cbb3c5d1f0";

/// Programs of engines. An engine without containers prints that the container does not exist.
struct FakeEngines {
    env: HookEnv,
}

impl FakeEngines {
    fn new() -> Self {
        let engines = FakeEngines { env: HookEnv::with_hooks() };
        std::fs::create_dir(engines.env.path("bin")).unwrap();
        for name in ["podman", "docker", "crio", "containerd", "ctr"] {
            engines.write(name, &[]);
        }
        engines.write("podman", &[("--version", "podman version 6.0.0")]);
        engines
    }

    /// Writes a program that prints a text for each of its possible arguments.
    fn write(&self, name: &str, answers: &[(&str, &str)]) {
        let mut script = "#!/bin/sh\ncase \"$*\" in\n".to_owned();
        for (arguments, answer) in answers {
            script += &match answer.is_empty() {
                true => format!("'{arguments}') ;;\n"),
                false => format!("'{arguments}') /bin/cat <<'EOF'\n{answer}\nEOF\n;;\n"),
            };
        }
        script += "*) echo \"Error: no such container\" >&2; exit 125;;\nesac\n";
        let name = format!("bin/{name}");
        self.env.write(&name, &script);
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.env.path(&name), permissions).unwrap();
    }

    /// Writes a podman with one container.
    fn podman(&self, version: &str, inspected: Value) {
        let inspected = json!([inspected]).to_string();
        let version = format!("podman version {version}");
        let answers = [("container inspect web", inspected.as_str()), ("--version", &version)];
        self.write("podman", &answers);
    }

    /// Writes a Docker with one container and these runtimes.
    fn docker(&self, inspected: Value, runtimes: Value) {
        let inspected = json!([inspected]).to_string();
        let info = json!({"ServerVersion": "27.1.0", "DefaultRuntime": "a", "Runtimes": runtimes});
        let info = info.to_string();
        let answers =
            [("container inspect web", inspected.as_str()), ("info --format {{json .}}", &info)];
        self.write("docker", &answers);
    }

    fn path(&self, name: &str) -> String {
        self.env.path(name).to_str().unwrap().to_owned()
    }

    /// Runs `explain` with the configuration of the consumer.
    fn explain_configured(&self, args: &[&str]) -> CommandOutput {
        self.env.run_configured(&[("PATH", "bin")], &[&["explain"], args].concat())
    }

    /// Runs `explain` with the two hook directories.
    fn explain(&self, args: &[&str]) -> CommandOutput {
        let dirs = ["--hooks-dir", "usr", "--hooks-dir", "etc"];
        self.explain_configured(&[args, &dirs].concat())
    }
}

/// Returns a container as podman and Docker print it.
fn inspected(name: &str, status: &str) -> Value {
    json!({
        "Id": ID, "Name": name, "Path": "/usr/bin/python3", "Args": ["-m", "http.server"],
        "State": {"Status": status, "Pid": 0}, "Mounts": [], "Config": {}, "HostConfig": {},
    })
}

#[test]
fn hooks_of_a_container_have_an_origin() {
    let engines = FakeEngines::new();
    let edits = |args: [&str; 1]| json!({"hooks": [{"hookName": "createContainer", "path": "/opt/cdi", "args": args}]});
    let spec = json!({
        "cdiVersion": "0.5.0", "kind": "vendor.com/gpu", "containerEdits": edits(["all"]),
        "devices": [
            {"name": "0", "containerEdits": edits(["one"])},
            {"name": "1", "containerEdits": edits(["one"])},
        ],
    });
    std::fs::create_dir(engines.env.path("cdi")).unwrap();
    engines.env.write("cdi/gpu.json", &spec.to_string());
    let config = json!({
        "process": {"args": ["/usr/bin/python3"]},
        "annotations": {"com.example.gpu": "none", "cdi.k8s.io/gpu": "vendor.com/gpu=1"},
        "mounts": [{"destination": "/data", "type": "bind"}],
        "hooks": {
            "prestart": [{"path": "/proc/5/exe", "args": ["libnetwork-setkey", "-exec-root=/a"]}],
            "createRuntime": [{"path": "/bin/true"}, {"path": "/bin/true", "args": ["other"]}],
            "createContainer": [
                {"path": "/opt/cdi", "args": ["all"]}, {"path": "/opt/cdi", "args": ["one"]},
            ],
            "poststop": [{"path": "/bin/true", "env": []}],
        },
    });
    engines.env.write("bundle.json", &config.to_string());
    let mut container = inspected("web", "running");
    container["OCIConfigPath"] = engines.path("bundle.json").into();
    engines.podman("5.2.1", container);
    let ran = engines.explain(&["web", "--cdi-spec-dir", "cdi"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("explain-container.txt", &ran.stdout);
    let ran = engines.explain(&["web", "--cdi-spec-dir", "cdi", "--format", "json"]);
    golden("explain-container.json", &ran.stdout);
    // A path is no name.
    engines.env.write("web", "{}");
    let ran = engines.explain(&["web"]);
    assert!(!ran.stdout.contains("container: podman"), "{}", ran.stdout);
    let ran = engines.explain(&["--engine", "podman", "web"]);
    assert!(ran.stdout.contains("container: podman web, running"), "{}", ran.stdout);
}

#[test]
fn version_of_podman_decides_unless_another_consumer_is_named() {
    let engines = FakeEngines::new();
    for (version, args, said) in [
        ("4.3.1", &["web"][..], "consumer: podman-4 (podman --version)"),
        ("6.0.0-dev", &["web"], "consumer: podman (podman --version)"),
        ("4.3.1", &["web", "--as", "podman-5"], "consumer: podman-5 (--as)"),
    ] {
        engines.podman(version, inspected("web", "exited"));
        let ran = engines.explain(args);
        assert!(ran.stdout.contains(said), "{}", ran.stdout);
    }
}

#[test]
fn container_that_was_not_started_is_matched_by_its_description() {
    let engines = FakeEngines::new();
    engines.env.hook("usr/50-mounts.json", r#""hasBindMounts": true"#, r#""poststop""#);
    let mut container = inspected("web", "created");
    container["Config"]["Annotations"] = json!({"com.example.gpu": "none"});
    container["HostConfig"]["Tmpfs"] = json!({"/scratch": "rw,nosuid"});
    engines.podman("5.2.1", container);
    let ran = engines.explain(&["web"]);
    for line in [
        "podman-5 for a container that runs `/usr/bin/python3`, has 1 annotation and has bind mounts\n",
        "  container: podman web, created (podman container inspect)\n",
        "  config.json: does not exist now (guessed from podman container inspect)\n",
        "Injected in this order: 10-python.json, 20-gpu.json, 30-filter.json, 50-mounts.json\n",
    ] {
        assert!(ran.stdout.contains(line), "{}", ran.stdout);
    }
}

#[test]
fn texts_of_a_container_have_no_control_characters() {
    let engines = FakeEngines::new();
    let mut container = inspected("web", "running");
    let config = json!({
        "process": {"args": ["/opt/\u{1b}[2Ja\nNo hook is injected.\u{9b}1m"]},
        "annotations": {"com.example.gpu": "\u{1b}]0;a\u{7}"},
        "hooks": {"poststop": [{"path": "/opt/\u{1b}[8m"}]},
    });
    engines.env.write("bundle.json", &config.to_string());
    container["OCIConfigPath"] = engines.path("bundle.json").into();
    engines.podman("5.2.1", container);
    std::fs::create_dir(engines.env.path("cdi")).unwrap();
    let ran = engines.explain(&["web", "--verbose", "--cdi-spec-dir", "cdi"]);
    assert!(ran.stdout.contains("/opt/\\u{1b}[2Ja\\nNo hook is injected."), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("  poststop  /opt/\\u{1b}[8m, which does not exist: origin unknown\n"),
        "{}",
        ran.stdout
    );
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!ran.stdout.contains(is_control), "{:?}", ran.stdout);
}

#[test]
fn unclear_names_need_an_engine() {
    let engines = FakeEngines::new();
    let ran = engines.explain(&["web"]);
    assert_eq!(ran.code, Some(2));
    let said = "error: web is neither a file nor a container of these engines \
                (podman: Error: no such container; docker: Error: no such container; crio: ";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    let ran = engines.explain(&["./web"]);
    assert!(ran.stderr.starts_with("error: ./web: cannot open"), "{}", ran.stderr);

    engines.podman("5.2.1", inspected("web", "running"));
    let mut other = inspected("/web", "created");
    // With podman as `docker`, there is one container.
    engines.docker(other.clone(), json!({}));
    assert_eq!(engines.explain(&["web"]).code, Some(0));
    other["Id"] = "77aa".into();
    engines.docker(other, json!({}));
    let ran = engines.explain(&["web"]);
    assert_eq!(ran.code, Some(2));
    let said = "error: several containers have the name web: podman web (3f2a97cbb3c5), \
                docker web (77aa)\n  hint: choose one with --engine podman\n";
    assert_eq!(ran.stderr, said);
    let ran = engines.explain(&["web", "--engine", "docker"]);
    assert!(ran.stdout.contains("container: docker web, created"), "{}", ran.stdout);
}

#[test]
fn docker_adds_hooks_only_by_the_wrapper() {
    let engines = FakeEngines::new();
    // The version of podman is irrelevant.
    engines.write("podman", &[("--version", "podman version unknown")]);
    let mut container = inspected("/web", "exited");
    container["HostConfig"]["Runtime"] = "a".into();
    for (path, said, code) in [
        (
            "runc",
            "No hook is injected: the runtime a adds no hooks, and Docker itself reads no hook files\n".to_owned(),
            1,
        ),
        (
            "/usr/bin/oci-hooks-runtime",
            "consumer: podman (the runtime /usr/bin/oci-hooks-runtime, named by docker info)\n"
                .to_owned(),
            0,
        ),
    ] {
        engines.docker(container.clone(), json!({"a": {"path": path}}));
        let ran = engines.explain(&["web"]);
        assert!(ran.stdout.contains(&said), "{}", ran.stdout);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""), "{}", ran.stdout);
    }
    engines.docker(container, json!({"a": {"path": "runc"}}));
    let ran = engines.explain(&["web", "--as", "podman"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
}

#[test]
fn containers_of_crio_are_found_in_its_storage() {
    let engines = FakeEngines::new();
    let (root, run_root) = (engines.path("storage"), engines.path("run"));
    let settings = format!(
        "[crio]\n# root = {root:?}\nrunroot = {run_root:?}\nstorage_driver = \"vfs\"\n\
         [crio.runtime]\nhooks_dir = [\n\t{:?},\n]\n",
        engines.path("usr")
    );
    engines.write("crio", &[("config", &settings)]);
    let dir = format!("storage/vfs-containers/{ID}/userdata");
    std::fs::create_dir_all(engines.env.path(&dir)).unwrap();
    let stored = json!([
        {"id": "00ff", "names": ["web"], "metadata": json!({"name": "web"}).to_string()},
        {"id": ID, "names": ["k8s_web_pod_ns_1_0"],
         "metadata": json!({"pod-id": "1", "metadata-name": "web"}).to_string()},
    ]);
    engines.env.write("storage/vfs-containers/containers.json", &stored.to_string());
    engines.env.write(&format!("{dir}/state.json"), r#"{"status": "stopped"}"#);
    let config = json!({
        "process": {"args": ["/usr/bin/python3"]},
        "annotations": {"io.kubernetes.cri-o.ContainerType": "container"},
    });
    engines.env.write(&format!("{dir}/config.json"), &config.to_string());
    for name in ["web", "k8s_web_pod_ns_1_0", "3f2a"] {
        let ran = engines.explain_configured(&[name]);
        for line in [
            "  container: crio k8s_web_pod_ns_1_0, stopped ({ROOT}/storage/vfs-containers/containers.json)\n",
            "/userdata/config.json (the storage that `crio config` names)\n",
            "  consumer: crio (the container's engine)\n",
            "  hook directories: {ROOT}/usr (`crio config`)\n",
            "  + 10-python.json",
        ] {
            assert!(ran.stdout.contains(line), "{}{}", ran.stdout, ran.stderr);
        }
    }
}

#[test]
fn containers_of_containerd_are_found_in_all_namespaces() {
    let engines = FakeEngines::new();
    let (state, socket) = (engines.path("state"), engines.path("socket"));
    engines.env.write("socket", "");
    let dump = format!("version = 2\nstate = {state:?}\n[grpc]\naddress = {socket:?}\n");
    let answers = [("config dump", dump.as_str()), ("--version", "containerd v1.7.24")];
    engines.write("containerd", &answers);
    let spec = json!({
        "Runtime": {
            "Name": "io.containerd.runc.v2",
            "Options": {"type_url": "containerd.runc.v1.Options"},
        },
        "Spec": {"process": {"args": ["/usr/bin/python3"]}},
    });
    let spec = spec.to_string();
    let call = |arguments: &str| format!("--address {socket} --connect-timeout 3s {arguments}");
    let list = "id~=\"^web\" labels.\"nerdctl/name\"==\"web\" \
                labels.\"io.kubernetes.container.name\"==\"web\"";
    let in_namespace =
        |namespace: &str, arguments: &str| call(&format!("--namespace {namespace} {arguments}"));
    let answers = [
        (call("namespaces list --quiet"), "default\nk8s.io"),
        (in_namespace("default", &format!("containers list --quiet {list}")), ""),
        (in_namespace("k8s.io", &format!("containers list --quiet {list}")), ID),
        (in_namespace("k8s.io", &format!("containers info {ID}")), spec.as_str()),
        (in_namespace("k8s.io", "tasks list"), &format!("TASK PID STATUS\n{ID} 7 RUNNING")),
    ];
    let answers: Vec<_> = answers.iter().map(|(call, answer)| (call.as_str(), *answer)).collect();
    engines.write("ctr", &answers);
    let ran = engines.explain(&["web"]);
    for line in [
        format!("  container: containerd k8s.io/{ID}, running (ctr containers list)\n"),
        "  config.json: does not exist now (ctr containers info)\n".to_owned(),
        "  consumer: nri (as if oci-hooks-nri were installed)\n".to_owned(),
        "No hook is injected: the runtime runc adds no hooks, and no NRI plugin adds them to this \
         container\n"
            .to_owned(),
    ] {
        assert!(ran.stdout.contains(&line), "{}{}", ran.stdout, ran.stderr);
    }

    let bundle = format!("state/io.containerd.runtime.v2.task/k8s.io/{ID}");
    std::fs::create_dir_all(engines.env.path(&bundle)).unwrap();
    engines.env.write(&format!("{bundle}/config.json"), r#"{"process": {"args": ["a"]}}"#);
    engines.env.write(&format!("{bundle}/runtime"), "/usr/bin/oci-hooks-runtime");
    let ran = engines.explain(&["web"]);
    for line in [
        format!("  config.json: {{ROOT}}/{bundle}/config.json (containerd's state directory)\n"),
        "  consumer: podman (the runtime /usr/bin/oci-hooks-runtime, named by ".to_owned(),
        "a container that runs `a`,".to_owned(),
    ] {
        assert!(ran.stdout.contains(&line), "{}{}", ran.stdout, ran.stderr);
    }
}
