use oci_hooks_engine::bundle::Seccomp;
use oci_hooks_files::error::chain;
use oci_hooks_host::privilege::Privilege;
use serde_json::{Value, json};

use super::*;
use crate::settings::{CacheSettings, ExtraSpecLimits, ImageSettings, MountSettings, PoolIds};

fn bootstrap(more: Value) -> Bootstrap {
    let mut document = json!({
        "name": "garm-a",
        "image": "debian:12",
        "flavor": "small",
        "arch": "amd64",
        "os_type": "linux",
        "pool_id": "p1",
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Bootstrap::parse(document.to_string().as_bytes()).unwrap()
}

fn specs(specs: Value) -> Bootstrap {
    bootstrap(json!({"extra_specs": specs}))
}

fn pools(names: &[&str]) -> PoolIds {
    PoolIds(names.iter().map(|name| (*name).to_owned()).collect())
}

fn settings() -> ProviderSettings {
    let small = Flavor {
        cpus: Cpus::new(2.0).ok(),
        memory: Some(ByteSize(4 << 30)),
        disk: Some(ByteSize(20 << 30)),
        ..Flavor::default()
    };
    let big = Flavor { privileged: true, nesting: true, no_new_privileges: true, ..small.clone() };
    let mount = |source: &str, read_only, names: &[&str], always| MountSettings {
        source: source.into(),
        target: "/mnt".into(),
        read_only,
        pools: pools(names),
        always,
    };
    let cache = |names: &[&str], always| CacheSettings {
        target: "/cache".into(),
        pools: pools(names),
        always,
    };
    ProviderSettings {
        root: "/var/lib/x".into(),
        flavors: [("small".to_owned(), small), ("big".to_owned(), big)].into(),
        mounts: [
            ("certs".to_owned(), mount("/etc/certs", true, &["*"], false)),
            ("data".to_owned(), mount("/srv/data", false, &["p2"], false)),
            ("tools".to_owned(), mount("/opt/tools", true, &["p1"], true)),
        ]
        .into(),
        caches: [
            ("cargo/../x".to_owned(), cache(&["*"], false)),
            ("pip".to_owned(), cache(&["p2"], true)),
        ]
        .into(),
        networks: [
            (
                "inner".to_owned(),
                NetworkSettings {
                    host_access: true,
                    dns: vec!["10.0.0.53".parse().unwrap()],
                    pools: pools(&["p1"]),
                },
            ),
            ("plain".to_owned(), NetworkSettings { pools: pools(&["*"]), ..Default::default() }),
            ("secret".to_owned(), NetworkSettings::default()),
        ]
        .into(),
        dns: vec!["9.9.9.9".parse().unwrap()],
        ..ProviderSettings::default()
    }
}

fn message(settings: &ProviderSettings, bootstrap: &Bootstrap) -> String {
    chain(&plan(settings, bootstrap).unwrap_err())
}

fn sources(plan: &InstancePlan) -> Vec<&Path> {
    let mut sources = Vec::new();
    for mount in &plan.options.mounts {
        match &mount.source {
            MountSource::Trusted { path, .. } => sources.push(path.as_path()),
            MountSource::Bind { .. } => {}
            other => panic!("{other:?} is nothing of the host"),
        }
    }
    sources
}

#[test]
fn instance_has_the_resources_of_its_flavor() {
    let plan = plan(&settings(), &bootstrap(json!({}))).unwrap();
    assert_eq!(plan.image.to_string(), "docker.io/library/debian:12");
    assert_eq!((plan.pull, plan.platform.to_string().as_str()), (PullPolicy::Newer, "linux/amd64"));
    let ResourceLimits { nano_cpus, memory_bytes, pids_limit, .. } = plan.options.resources;
    assert_eq!(
        (nano_cpus, memory_bytes, pids_limit),
        (Some(2_000_000_000), Some(4 << 30), Some(32_768))
    );
    assert_eq!(plan.disk_bytes, Some(20 << 30));
    assert_eq!(plan.options.hostname.as_deref(), Some("garm-a"));
    let no_new_privileges = false;
    assert_eq!(
        plan.options.security,
        ContainerSecurity { no_new_privileges, ..ContainerSecurity::default() }
    );
    assert!(plan.options.devices.is_empty());
    assert_eq!((plan.host_access, plan.dns.len()), (false, 1));
    assert_eq!(plan.boot.user, "runner");
    assert!(plan.boot.install_dependencies && !plan.boot.use_garm_template);
    assert_eq!(plan.boot.timeout.as_secs(), 900);
}

#[test]
fn any_flavor_is_accepted_if_none_is_configured() {
    let plan =
        plan(&ProviderSettings::default(), &bootstrap(json!({"flavor": "{\"cpu\":2}"}))).unwrap();
    assert_eq!(plan.options.resources, ResourceLimits::default());
    assert_eq!(plan.disk_bytes, None);
}

#[test]
fn unknown_flavor_is_rejected_with_the_known_ones() {
    assert_eq!(
        message(&settings(), &bootstrap(json!({"flavor": "huge"}))),
        "unknown flavor \"huge\": expected one of big, small"
    );
}

#[test]
fn images_can_have_aliases_in_the_settings() {
    let mut settings = settings();
    settings.images.insert(
        "ubuntu 24".to_owned(),
        ImageSettings {
            reference: "ghcr.io/team/runner:2".parse().unwrap(),
            runner_dir: Some("/home/runner".into()),
            user: Some("ci".to_owned()),
            pull: Some(PullPolicy::Missing),
        },
    );
    settings.images.insert("ubuntu".to_owned(), settings.images["ubuntu 24"].clone());
    let document = bootstrap(json!({"image": "ubuntu 24"}));
    let named = plan(&settings, &document).unwrap();
    assert_eq!(named.image.to_string(), "ghcr.io/team/runner:2");
    assert_eq!(named.pull, PullPolicy::Missing);
    assert_eq!(named.boot.user, "ci");
    assert_eq!(named.boot.runner_dir.as_deref(), Some(Path::new("/home/runner")));

    let document = bootstrap(json!({"image": "ubuntu 24", "extra_specs": {"user": "1000"}}));
    assert_eq!(plan(&settings, &document).unwrap().boot.user, "1000");

    for (image, expected) in [
        ("A B", "unknown image \"A B\": not an alias in the settings and not a valid reference: "),
        (
            "ubunut",
            "\"ubunut\" is not an alias in the settings: did you mean \"ubuntu\"? \
             To pull \"ubunut\" from Docker Hub, write docker.io/library/ubunut",
        ),
    ] {
        let message = message(&settings, &bootstrap(json!({"image": image})));
        assert!(message.starts_with(expected), "{message}");
    }
    for image in ["ubunut:24", "octo/ubunut", "debian"] {
        plan(&settings, &bootstrap(json!({"image": image}))).unwrap();
    }
}

#[test]
fn only_linux_and_known_architectures_are_supported() {
    for (arch, platform) in [("arm64", "linux/arm64"), ("arm", "linux/arm"), ("i386", "linux/386")]
    {
        let document = bootstrap(json!({"arch": arch, "os_type": "unknown"}));
        assert_eq!(plan(&settings(), &document).unwrap().platform.to_string(), platform);
    }
    let host = plan(&settings(), &bootstrap(json!({"arch": null}))).unwrap().platform;
    assert_eq!(host, Platform::host());
    assert_eq!(
        message(&settings(), &bootstrap(json!({"os_type": "windows"}))),
        "unsupported os_type \"windows\": expected linux"
    );
    assert_eq!(
        message(&settings(), &bootstrap(json!({"arch": "../../x"}))),
        "unknown arch \"../../x\": expected amd64, i386, arm64 or arm"
    );
}

#[test]
fn extra_specs_can_lower_but_not_exceed_the_flavor() {
    let less = json!({"cpus": 1, "memory": "1GiB", "pids": 100, "disk": 5});
    let plan = plan(&settings(), &specs(less)).unwrap();
    let ResourceLimits { nano_cpus, memory_bytes, pids_limit, .. } = plan.options.resources;
    assert_eq!(
        (nano_cpus, memory_bytes, pids_limit),
        (Some(1_000_000_000), Some(1 << 30), Some(100))
    );
    assert_eq!(plan.disk_bytes, Some(5));
    for (more, expected) in [
        (json!({"cpus": 2.5}), "\"/cpus\" is 2.5, over the limit of 2 in flavor \"small\""),
        (
            json!({"memory": "8GiB"}),
            "\"/memory\" is 8GiB, over the limit of 4GiB in flavor \"small\"",
        ),
        (
            json!({"pids": 32_769}),
            "\"/pids\" is 32769, over the limit of 32768 in flavor \"small\"",
        ),
        (json!({"disk": "1TiB"}), "\"/disk\" is 1TiB, over the limit of 20GiB in flavor \"small\""),
    ] {
        assert_eq!(message(&settings(), &specs(more)), format!("extra specs: {expected}"));
    }
}

#[test]
fn only_root_limits_disks() {
    let settings = ProviderSettings { privilege: Privilege::Single, ..settings() };
    assert_eq!(
        message(&settings, &specs(json!({}))),
        "flavor \"small\" limits the disk of the instance to 20GiB, which needs a loop device, available \
         only to root: remove `disk` there, or run the provider as root"
    );
    let asked = message(&settings, &specs(json!({"disk": 5})));
    assert!(
        asked.starts_with("extra specs: \"/disk\" limits the disk of the instance to 5B, "),
        "{asked}"
    );
    let flavor = Flavor { disk: None, ..settings.flavors["small"].clone() };
    let flavors = [("small".to_owned(), flavor)].into();
    assert_eq!(
        plan(&ProviderSettings { flavors, ..settings }, &specs(json!({}))).unwrap().disk_bytes,
        None
    );
}

#[test]
fn limits_of_the_settings_bound_extra_specs() {
    let limits = ExtraSpecLimits {
        cpus: Cpus::new(8.0).ok(),
        memory: Some(ByteSize(1 << 30)),
        pids: NonZeroU32::new(50_000),
        disk: None,
    };
    let settings = ProviderSettings { limits, ..settings() };
    let plan = plan(&settings, &specs(json!({"cpus": 8, "pids": 50_000}))).unwrap();
    assert_eq!(plan.options.resources.nano_cpus, Some(8_000_000_000));
    assert_eq!(plan.options.resources.pids_limit, Some(50_000));
    // Limits do not apply to the flavor's own values.
    assert_eq!(plan.options.resources.memory_bytes, Some(4 << 30));
    for (more, expected) in [
        (json!({"cpus": 8.1}), "\"/cpus\" is 8.1, over the limit of 8 in "),
        (json!({"memory": "2GiB"}), "\"/memory\" is 2GiB, over the limit of 1GiB in "),
    ] {
        let expected = format!("extra specs: {expected}[limits] of the settings");
        assert_eq!(message(&settings, &specs(more)), expected);
    }
}

#[test]
fn extra_specs_can_only_drop_privileges_of_the_flavor() {
    for key in ["privileged", "nesting"] {
        assert_eq!(
            message(&settings(), &specs(json!({key: true}))),
            format!(
                "extra specs: \"/{key}\" is true, which needs `{key} = true` in flavor \"small\" of the settings"
            )
        );
        plan(&settings(), &specs(json!({key: false}))).unwrap();
    }
    let big = |specs: Value| {
        plan(&settings(), &bootstrap(json!({"flavor": "big", "extra_specs": specs}))).unwrap()
    };
    let all = big(json!({"privileged": true}));
    assert!(all.options.security.privileged && all.options.security.nesting);
    assert!(all.options.security.no_new_privileges);
    let devices = [Path::new("/dev/fuse"), Path::new("/dev/net/tun")].into_iter();
    let there: Vec<_> = devices.filter(|path| path.exists()).collect();
    assert_eq!(
        all.options.devices.iter().map(|d| d.container.as_path()).collect::<Vec<_>>(),
        there
    );
    let nesting = big(json!({"privileged": false})).options.security;
    assert!(!nesting.privileged && nesting.nesting && !nesting.unmask);
    assert_eq!(nesting.seccomp, Seccomp::Default);
    let none = big(json!({"privileged": false, "nesting": false}));
    assert!(!none.options.security.privileged && !none.options.security.nesting);
    assert!(none.options.devices.is_empty());
}

#[test]
fn flavors_that_need_private_users_are_rejected_without_them() {
    let refused = |users, specs: Value| {
        let settings = ProviderSettings { users, ..settings() };
        let bootstrap = bootstrap(json!({"flavor": "big", "extra_specs": specs}));
        plan(&settings, &bootstrap).map_err(|error| chain(&error)).map(|plan| plan.options.security)
    };
    let needs = |key: &str| {
        format!("flavor \"big\" has `{key}`, which needs a user namespace for each instance: ")
    };
    let message = refused(InstanceUserNamespace::HostOnly, json!({"nesting": false})).unwrap_err();
    assert!(message.starts_with(&needs("privileged")) && message.contains("doctor"), "{message}");
    for users in [InstanceUserNamespace::Host, InstanceUserNamespace::HostOnly] {
        let message = refused(users, json!({"privileged": false})).unwrap_err();
        assert!(message.starts_with(&needs("nesting")), "{message}");
        refused(users, json!({"nesting": false, "privileged": false})).unwrap();
    }
    // The settings choose the host's user namespace explicitly.
    assert!(refused(InstanceUserNamespace::Host, json!({"nesting": false})).unwrap().privileged);
}

#[test]
fn mounts_match_the_pool() {
    let usual = plan(&settings(), &bootstrap(json!({}))).unwrap();
    assert_eq!(sources(&usual), [Path::new("/opt/tools")]);
    let more = plan(&settings(), &specs(json!({"mounts": ["certs", "tools", "certs"]}))).unwrap();
    assert_eq!(sources(&more), [Path::new("/etc/certs"), Path::new("/opt/tools")]);
    assert!(more.options.mounts.iter().all(|mount| mount.read_only));
    assert_eq!(
        message(&settings(), &specs(json!({"mounts": ["certs", "data"]}))),
        "extra specs: \"/mounts/1\": unknown mount \"data\" for this pool; \
         expected one of certs, tools"
    );
}

#[test]
fn writable_mount_belongs_to_a_non_root_owner() {
    let writable = |settings: &ProviderSettings| {
        let document = json!({"pool_id": "p2", "extra_specs": {"mounts": ["data"]}});
        let plan = plan(settings, &bootstrap(document)).map_err(|error| chain(&error))?;
        Ok::<_, String>(plan.options.mounts.into_iter().find(|mount| !mount.read_only).unwrap())
    };
    let of = |source: &Path| {
        let mut settings = settings();
        settings.mounts.get_mut("data").unwrap().source = source.to_owned();
        settings
    };
    let dir = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(dir.path(), Some(54321), Some(54322)).unwrap();
    }
    let mount = writable(&of(dir.path())).unwrap();
    assert_eq!(mount.target, Path::new("/mnt"));
    let Some(IdMapping::User { host_uid, host_gid, user, .. }) = mount.id_mapping else {
        panic!("{mount:?}")
    };
    assert_eq!(is_root, (host_uid, host_gid) == (54321, 54322));
    assert_eq!(user, None);
    let refused = writable(&of(Path::new("/"))).unwrap_err();
    assert!(refused.starts_with("mount \"data\" is writable and / belongs to root"), "{refused}");
    let missing = writable(&of(Path::new("/nonexistent"))).unwrap_err();
    assert!(missing.starts_with("mount \"data\": cannot open /nonexistent: "), "{missing}");
    // Files that rootless instances create belong to their user anyway.
    let ordinary =
        ProviderSettings { privilege: Privilege::Single, flavors: BTreeMap::new(), ..settings() };
    assert!(writable(&ordinary).unwrap().id_mapping.is_none());
}

#[test]
fn caches_are_separate_for_each_pool() {
    let of = |pool: &str| {
        let document = json!({"pool_id": pool, "extra_specs": {"caches": ["cargo/../x"]}});
        let plan = plan(&settings(), &bootstrap(document)).unwrap();
        assert!(plan.caches.iter().all(|cache| sources(&plan).contains(&cache.as_path())));
        plan.caches
    };
    let (first, second) = (of("p1"), of("../../my set/1"));
    assert_eq!((first.len(), second.len(), of("p2").len()), (1, 1, 2));
    assert_ne!(first, second);
    assert_eq!(first, of("p1"));
    for directory in first.iter().chain(&second) {
        assert_eq!(directory.parent(), Some(Path::new("/var/lib/x/garm/caches")));
        let name = directory.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("cargox-") && name.len() == 39, "{name}");
    }
    assert_eq!(
        message(&settings(), &specs(json!({"caches": ["pip"]}))),
        "extra specs: \"/caches/0\": unknown cache \"pip\" for this pool; \
         expected one of cargo/../x"
    );
}

#[test]
fn networks_match_the_pool() {
    let inner = plan(&settings(), &specs(json!({"network": "inner"}))).unwrap();
    assert!(inner.host_access);
    assert_eq!(inner.dns, ["10.0.0.53".parse::<IpAddr>().unwrap()]);
    let plain = plan(&settings(), &specs(json!({"network": "plain"}))).unwrap();
    assert_eq!((plain.host_access, plain.dns), (false, settings().dns));
    assert_eq!(
        message(&settings(), &specs(json!({"network": "secret"}))),
        "extra specs: \"/network\": unknown network \"secret\" for this pool; \
         expected one of inner, plain"
    );
    let none = ProviderSettings { networks: BTreeMap::new(), ..settings() };
    assert_eq!(
        message(&none, &specs(json!({"network": "x"}))),
        "extra specs: \"/network\": unknown network \"x\" for this pool; no [networks.NAME] in the settings \
         lists the pool in `pools`"
    );
}

#[test]
fn pool_determines_scripts_packages_and_variables() {
    let document = specs(json!({
        "env": {"A": "x y"},
        "extra_packages": ["git"],
        "pre_install_scripts": {"01": "ZWNobyBoaQo="},
        "use_garm_template": true,
        "install_dependencies": false,
    }));
    let plan = plan(&settings(), &document).unwrap();
    assert_eq!(plan.options.env, ["A=x y"]);
    assert_eq!(plan.boot.env["A"], "x y");
    assert_eq!(plan.boot.packages, ["git"]);
    assert_eq!(plan.boot.pre_install["01"], b"echo hi\n");
    assert!(plan.boot.use_garm_template && !plan.boot.install_dependencies);
}

#[test]
fn invalid_extra_specs_are_rejected() {
    assert_eq!(
        message(&settings(), &specs(json!({"mounst": []}))),
        "extra specs: unknown key \"mounst\": did you mean \"mounts\"?"
    );
}

#[test]
fn hostname_is_the_instance_name_cut_to_the_kernels_limit() {
    assert_eq!(hostname("garm-a"), "garm-a");
    let long = format!("{}-{}", "a".repeat(62), "b".repeat(60));
    assert_eq!(hostname(&long), "a".repeat(62));
    assert_eq!(hostname(&"ä".repeat(40)), "ä".repeat(31));
    assert_eq!(hostname(""), "");
}
