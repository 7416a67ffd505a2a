use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use oci_hooks_host::apparmor;

use super::maximums::MaxTable;
use super::paths::{is_within, open_beneath};
use super::*;
use crate::options::{CreateOptions, IpcMode};
use crate::volumes::{RequestVolume, VolumeSource};

fn policy(toml: &str) -> Policy {
    toml::from_str(toml).unwrap_or_else(|error| panic!("{toml}: {error}"))
}

fn check(policy: &Policy, options: &str) -> Result<CreateOptions, String> {
    let mut parsed = CreateOptions::parse(options).unwrap();
    parsed.check(policy).map(|()| parsed).map_err(|error| error.to_string())
}

/// Options that reach out of the container, and the settings that allow them.
const DANGEROUS: [(&str, &str); 22] = [
    ("--privileged", "privileged = true"),
    ("--pid=host", "host-namespaces = [\"pid\"]"),
    ("--uts=host", "host-namespaces = [\"uts\"]"),
    ("--cgroupns=host", "host-namespaces = [\"cgroup\"]"),
    ("--network=host", "host-namespaces = [\"network\"]"),
    ("-v /:/host", "bind-mounts = [\"/\"]"),
    ("-v /:/host:ro", "bind-mounts = [\"/\"]"),
    ("--mount type=bind,source=/etc,target=/host", "bind-mounts = [\"/etc\"]"),
    ("-v named:/data:shared", "shared-mounts = true"),
    ("--device /dev/null", "devices = [\"/dev/null\"]"),
    ("--device vendor.com/lamp=red", "devices = [\"vendor.com/lamp=*\"]"),
    ("--gpus 2", "devices = [\"nvidia.com/gpu=0\", \"nvidia.com/gpu=1\"]"),
    ("--device-cgroup-rule 'c 189:* rwm'", "device-rules = [\"c 189:* rwm\"]"),
    ("--cap-add SYS_ADMIN", "capabilities = [\"SYS_ADMIN\"]"),
    ("--cap-add all", "capabilities = [\"ALL\"]"),
    ("--security-opt seccomp=unconfined", "security-opts = [\"seccomp=unconfined\"]"),
    ("--security-opt apparmor=other", "security-opts = [\"apparmor=other\"]"),
    ("--security-opt no-new-privileges=false", "security-opts = [\"no-new-privileges=false\"]"),
    ("--security-opt systempaths=unconfined", "security-opts = [\"systempaths=unconfined\"]"),
    ("--oom-score-adj -500", "oom-protection = true"),
    ("--oom-kill-disable", "oom-protection = true"),
    ("--pids-limit -1", "max-pids = 0"),
];

#[test]
fn longest_pattern_chooses_the_runtime_of_a_repository() {
    let policy = policy(
        r#"runtimes = { "octo/*" = "/opt/a", "Octo/Public-*" = "/opt/b", "octo/public-one" = "/opt/c" }"#,
    );
    for (repository, expected) in [
        ("octo/other", Some("/opt/a")),
        ("octo/public-two", Some("/opt/b")),
        ("octo/public-one", Some("/opt/c")),
        ("OCTO/public-one", Some("/opt/c")),
        ("octopus/public-one", None),
        ("", None),
    ] {
        assert_eq!(policy.runtime(repository), expected, "{repository}");
    }
    // An exact name precedes a pattern of the same length.
    let policy =
        self::policy(r#"runtimes = { "a/b*" = "/opt/a", "a/bc" = "/opt/b", "*" = "/opt/c" }"#);
    assert_eq!(policy.runtime("a/bc"), Some("/opt/b"));
    assert_eq!(policy.runtime(""), Some("/opt/c"));
}

#[test]
fn invalid_runtimes_of_repositories_are_rejected() {
    for (runtimes, expected) in [
        (r#""octo" = "/opt/a""#, "\"octo\" is not a repository: expected OWNER/REPOSITORY"),
        (r#""octo*" = "/opt/a""#, "\"octo*\" is not a repository"),
        (r#""o/*-r" = "/opt/a""#, "\"o/*-r\" is not a repository"),
        (r#""o/r" = """#, "\"\" is not a runtime"),
        (r#""o/r" = "./a""#, "\"./a\" is not a runtime: expected an absolute path"),
        (r#""o/r" = "/a", "O/r" = "/b""#, "occurs twice"),
    ] {
        let error = toml::from_str::<Policy>(&format!("runtimes = {{ {runtimes} }}")).unwrap_err();
        assert!(error.to_string().contains(expected), "{runtimes}: {error}");
    }
}

#[test]
fn host_access_requires_the_policy() {
    for (options, entry) in DANGEROUS {
        let denied = check(&Policy::default(), options).expect_err(options);
        let name = options.split([' ', '=']).next().unwrap();
        let key = entry.split(' ').next().unwrap();
        assert!(denied.contains(name) || denied.contains("the volume"), "{options}: {denied}");
        assert!(denied.contains(key) && denied.contains("[policy]"), "{options}: {denied}");
        check(&policy(entry), options).unwrap_or_else(|error| panic!("{options}: {error}"));
    }
}

#[test]
fn denials_name_the_settings_file() {
    let named = Policy { file: Some("/etc/p.toml".into()), ..Policy::default() };
    for (options, _) in DANGEROUS {
        let denied = check(&named, options).unwrap_err();
        assert!(denied.contains(" under [policy] in /etc/p.toml"), "{denied}");
    }
    let denied = check(&named, "--gpus all").unwrap_err();
    assert!(denied.contains(" under [policy.gpus] in /etc/p.toml"), "{denied}");
}

#[test]
fn denied_host_ipc_becomes_a_large_private_dev_shm() {
    let options = check(&Policy::default(), "--ipc=host").unwrap();
    assert_eq!((options.host_namespaces.len(), options.ipc), (0, IpcMode::Large));
    assert_eq!(options.without_effect[0].option, "ipc=host");
    let options = check(&policy("host-namespaces = [\"ipc\"]"), "--ipc=host").unwrap();
    assert!(options.host_namespaces.contains(&HostNamespace::Ipc));
    assert_eq!(options.ipc, IpcMode::Private);
    assert!(options.without_effect.is_empty());
}

#[test]
fn apparmor_option_is_ignored_without_apparmor() {
    let found = check(&Policy::default(), "--security-opt apparmor=unconfined");
    assert_eq!(found.is_ok(), !apparmor::is_enabled(), "{found:?}");
    let loose = policy("security-opts = [\"apparmor=*\"]");
    let options = check(&loose, "--security-opt apparmor=unconfined").unwrap();
    assert_eq!(options.security.apparmor.is_some(), apparmor::is_enabled());
}

#[test]
fn written_keys_override_the_preset() {
    let docker = policy("preset = \"docker\"\nprivileged = false\nbind-mounts = [\"/srv\"]");
    assert_eq!(docker.bind_mounts, [Path::new("/srv")]);
    assert!(!docker.privileged && !docker.gives_root() && docker.shared_mounts);
    check(&docker, "--privileged").unwrap_err();
    check(&docker, "--cap-add ALL --pid host --device /dev/null -v a:/b:shared").unwrap();
    assert!(Policy::of(Preset::Docker).gives_root());
    // A serialized policy is parsed to the same policy.
    let text = toml::to_string(&docker).unwrap();
    assert_eq!(policy(&text), docker);
}

/// Returns the `options:` of public workflows, as the runner sends them.
fn real_options() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path.join("tests/data/real-options.txt")).unwrap();
    text.lines().map(|line| line.replace("{workspace}", "/home/runner/_work/repo/repo")).collect()
}

/// Returns the real options that a policy denies.
fn denied_real_options(policy: &Policy) -> Vec<String> {
    let is_denied = |text: &String| {
        let Ok(mut options) = CreateOptions::parse(text) else { return true };
        for volume in &mut options.volumes {
            volume.source = volume.source.clone().of_runner(Path::new("/home/runner/_work"));
        }
        options.check(policy).is_err()
    };
    real_options().into_iter().filter(is_denied).collect()
}

#[test]
fn docker_preset_allows_real_workflows() {
    // Replaces the NVIDIA devices, which test machines lack.
    let docker = policy("preset = \"docker\"\ngpus = { devices = [\"/dev/nul*\"] }");
    let denied = denied_real_options(&docker);
    // A runtime from Docker's settings, and a container by its name, are not supported.
    let expected = ["--runtime \"nvidia\" -e NVIDIA_VISIBLE_DEVICES=all", "--volumes-from=job"];
    assert_eq!(denied, expected);
}

#[test]
fn default_policy_keeps_real_workflows_from_the_host() {
    let denied = denied_real_options(&Policy::default());
    let reaches = [
        "--privileged",
        "--gpus",
        "--device",
        "--network host",
        "--pid=host",
        "seccomp=unconfined",
        "NET_ADMIN",
        "SYS_ADMIN",
        "--runtime",
        "--volumes-from",
        "-v /",
        "--volume /",
    ];
    for options in &denied {
        assert!(reaches.iter().any(|one| options.contains(one)), "{options}");
    }
    assert_eq!((denied.len(), real_options().len()), (33, 90), "{denied:#?}");
}

#[test]
fn device_rules_cover_narrower_rules() {
    for (allowed, asked, is_allowed) in [
        ("c 189:* rwm", "c 189:3 r", true),
        ("c 189:* r", "c 189:3 rw", false),
        ("c 189:3 rwm", "c 189:* r", false),
        ("a *:* rwm", "b 8:0 m", true),
        ("c *:* rwm", "b 8:0 m", false),
    ] {
        let policy = policy(&format!("device-rules = [{allowed:?}]"));
        let found = check(&policy, &format!("--device-cgroup-rule '{asked}'"));
        assert_eq!(found.is_ok(), is_allowed, "{allowed} and {asked}: {found:?}");
    }
    let error = toml::from_str::<Policy>("device-rules = [\"c 0xbd:* r\"]").unwrap_err();
    assert!(error.message().starts_with("invalid device rule"), "{error}");
}

#[test]
fn maximums_name_existing_options() {
    for wrong in ["max = { ulimits = { nofiles = 1 } }", "[max]\nmem = 1", "[max]\ncpus = 0"] {
        assert!(toml::from_str::<Policy>(wrong).is_err(), "{wrong}");
    }
    let max = policy("[max]\nmemory = \"1GiB\"\n[max.job]\nmemory = \"512MiB\"").max;
    assert_eq!(max.memory_bytes(), Some((512 << 20, MaxTable::Job)));
}

#[test]
fn options_within_the_container_are_allowed() {
    let options = "--cpus 2 --memory 4g --shm-size=2g --user 0 --init --hostname ci.local \
                   --add-host db.local:127.0.0.1 --cap-add SYS_PTRACE --cap-drop ALL \
                   --security-opt no-new-privileges --security-opt label=disable --userns=host \
                   --ulimit nofile=65536 --tmpfs /scratch:rw,size=64m -e FOO=bar --label a=b \
                   --dns 1.1.1.1 -v named:/x -v /anonymous --sysctl net.core.somaxconn=1024 \
                   --sysctl kernel.shmmax=1 --pids-limit 100 --oom-score-adj 500 --network none";
    check(&Policy::default(), options).unwrap();
}

#[test]
fn all_denials_are_reported_together() {
    let denied = check(&Policy::default(), "--privileged --pid=host -v /:/host").unwrap_err();
    assert_eq!(denied.lines().count(), 3, "{denied}");
}

#[test]
fn machine_wide_sysctls_are_always_denied() {
    let all = policy("host-namespaces = [\"network\", \"ipc\"]");
    for options in [
        "--sysctl kernel.core_pattern=x",
        "--sysctl vm.swappiness=1",
        "--sysctl net.core.somaxconn=1 --network host",
        "--sysctl kernel.sem=1 --ipc host",
    ] {
        assert!(check(&all, options).unwrap_err().contains("--sysctl"), "{options}");
    }
}

#[test]
fn annotations_are_allowed_by_key() {
    let some = policy("annotations = [\"com.example.*\", \"exact\"]");
    check(&some, "--annotation com.example.x=1 --annotation exact=2").unwrap();
    for key in ["com.exampl", "exacter", "run.oci.hooks.stdout"] {
        assert!(check(&some, &format!("--annotation {key}=/x")).unwrap_err().contains(key));
    }
}

#[test]
fn links_and_dots_cannot_leave_an_allowed_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("cache/below")).unwrap();
    fs::create_dir(root.join("cached")).unwrap();
    symlink(&root, root.join("cache/out")).unwrap();
    symlink("below", root.join("cache/in")).unwrap();
    symlink(root.join("later"), root.join("cache/nowhere")).unwrap();
    symlink(root.join("cache"), root.join("alias")).unwrap();
    let allowed = Policy { bind_mounts: vec![root.join("alias")], ..Policy::default() };
    let bind = |path: &str| {
        let mut volume = RequestVolume::parse(&format!("{}/{path}:/x", root.display())).unwrap();
        allowed.check_volume(&mut volume).map(|()| match volume.source {
            VolumeSource::Bind { path, .. } => path,
            other => panic!("{other:?}"),
        })
    };
    for (asked, resolved) in [
        ("cache", "cache"),
        ("alias/below", "cache/below"),
        ("cache/in", "cache/below"),
        ("cache/below/..", "cache"),
        ("cache/new/er", "cache/new/er"),
        ("cache/out/cache/new", "cache/new"),
    ] {
        assert_eq!(bind(asked).unwrap(), root.join(resolved), "{asked}");
    }
    for asked in [
        "",
        "cached",
        "cache/..",
        "cache/out",
        "cache/out/cached",
        "cache/nowhere",
        "cache/nowhere/x",
        "cache/new/../..",
        "cache/new/../../cached",
    ] {
        assert!(bind(asked).is_err(), "{asked}");
    }
}

#[test]
fn settings_define_the_devices_of_gpus() {
    assert!(check(&Policy::default(), "--gpus all").unwrap_err().contains("[policy.gpus]"));
    let gpus = policy(
        "[gpus]\ndevices = [\"/dev/nvidia0\"]\nvolumes = [\"/usr/lib/gpu:/usr/lib/gpu:ro\"]",
    );
    let options = check(&gpus, "--gpus all").unwrap();
    assert_eq!(options.gpu_devices[0].host, Path::new("/dev/nvidia0"));
    assert!(options.gpu_volumes[0].read_only);
    // Devices for `--gpus` are not allowed for `--device`.
    assert!(check(&gpus, "--gpus all --device /dev/null").is_err());
    let gpus = policy("[gpus]\ndevices = [\"nvidia.com/gpu=all\"]");
    assert_eq!(check(&gpus, "--gpus all").unwrap().cdi_devices, ["nvidia.com/gpu=all"]);
    assert!(check(&gpus, "--device nvidia.com/gpu=all").is_err());
    assert!(check(&gpus, "--gpus device=0").unwrap_err().contains("nvidia.com/gpu=0"));
    let cdi = policy("devices = [\"nvidia.com/*\"]");
    assert_eq!(check(&cdi, "--gpus all").unwrap().cdi_devices, ["nvidia.com/gpu=all"]);
    // A pattern of CDI devices allows no file.
    assert!(check(&policy("devices = [\"*\"]"), "--device /dev/null").is_err());
    assert!(check(&policy("[gpus]\ndevices = [\"x\"]"), "--gpus all").is_err());
}

#[test]
fn relative_entries_allow_no_file() {
    // Tests run in the directory of the crate; hooks run in a directory that jobs can write to.
    let source = fs::canonicalize("src").unwrap();
    for (entry, is_allowed) in [(Path::new("src"), false), (source.as_path(), true)] {
        let allowed = [entry.to_owned()];
        assert_eq!(is_within(&source, &allowed), is_allowed, "{entry:?}");
        assert_eq!(open_beneath(&source, &allowed, None).is_ok(), is_allowed, "{entry:?}");
    }
}

#[test]
fn sockets_of_container_engines_are_recognized() {
    for path in ["/var/run/docker.sock", "/run/user/1000/podman/podman.sock"] {
        assert!(is_engine_socket(Path::new(path)), "{path}");
    }
    assert!(!is_engine_socket(Path::new("/var/run/docker.sock.d/x")));
}

#[test]
fn unknown_keys_of_the_policy_are_errors() {
    assert!(toml::from_str::<Policy>("priviledged = true").is_err());
    assert!(toml::from_str::<Policy>("host-namespaces = [\"mount\"]").is_err());
    assert_eq!(policy(""), Policy::default());
}
