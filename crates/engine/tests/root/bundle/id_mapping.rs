//! Owners of files in mounted directories.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use oci_hooks_engine::bundle::{IdMapping, MountPropagation, MountRequest, MountSource};
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_testsupport::runtime::TestRuntime;

use crate::bundle::container::TestBundle;

const RUNNER: (u32, u32) = (1234, 1235);

/// Creates a container with the runner's directory at /work, in which the runner's files belong to the
/// container's user.
fn parts(directory: &str, script: &str) -> TestBundle {
    let mut parts = TestBundle::new_in(Path::new(directory), script);
    let work = parts.host("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("mine"), "").unwrap();
    for path in [&work, &work.join("mine")] {
        chown(path, Some(RUNNER.0), Some(RUNNER.1)).unwrap();
    }
    fs::write(work.join("of-root"), "secret").unwrap();
    fs::set_permissions(work.join("of-root"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    parts.options.mounts = vec![MountRequest {
        target: "/work".into(),
        source: MountSource::Trusted {
            path: work,
            propagation: MountPropagation::Private,
            recursive: true,
        },
        read_only: false,
        subpath: None,
        id_mapping: Some(IdMapping::User {
            host_uid: RUNNER.0,
            host_gid: RUNNER.1,
            user: None,
            is_required: false,
        }),
    }];
    parts
}

#[test]
fn files_of_container_root_belong_to_the_runner() {
    for runtime in TestRuntime::ALL {
        for directory in ["/tmp", "/dev/shm"] {
            let script = "cd /work; echo x > made; mkdir -p d/e; stat -c %u:%g mine made d";
            let parts = parts(directory, script);
            let out = parts.run(runtime).success();
            assert_eq!(out, "0:0\n0:0\n0:0\n", "{runtime}, {directory}");
            for name in ["made", "d", "d/e"] {
                let made = fs::metadata(parts.host("work").join(name)).unwrap();
                assert_eq!((made.uid(), made.gid()), RUNNER, "{runtime}, {directory}: {name}");
            }
        }
    }
}

#[test]
fn files_of_host_root_cannot_be_created_or_read() {
    let script = "cd /work; stat -c %u of-root; cat of-root 2>&1
        /bin/busybox chown 1234 mine 2>/dev/null; /bin/busybox chown 1234 . 2>/dev/null; true";
    for runtime in TestRuntime::ALL {
        let parts = parts("/tmp", script);
        let out = parts.run(runtime).success();
        assert!(out.starts_with("65534\n") && !out.contains("secret"), "{runtime}: {out}");
        // `chown` to another user of the container gives the file a private id of the host.
        let work = parts.host("work");
        for path in [work.join("mine"), work] {
            let owner = fs::metadata(&path).unwrap().uid();
            assert!(PrivateIds::ALL.contains(&owner), "{runtime}: {} is {owner}'s", path.display());
        }
    }
}

#[test]
fn files_of_other_container_users_belong_to_the_runner() {
    for runtime in TestRuntime::ALL {
        // By name, by number, and by the runner's own number, which needs no mapping.
        let own = format!("{}:{}", RUNNER.0, RUNNER.1);
        for user in ["app", "77:88", &own] {
            let mut parts = parts("/dev/shm", "cd /work; echo x > made; stat -c %u:%g mine; id -u");
            parts.image.user = user.to_owned();
            let out = parts.run(runtime).success();
            let lines: Vec<&str> = out.lines().collect();
            assert!(lines[0].starts_with(&format!("{}:", lines[1])), "{runtime}, {user}: {out}");
            let made = fs::metadata(parts.host("work/made")).unwrap();
            assert_eq!((made.uid(), made.gid()), RUNNER, "{runtime}, {user}");
        }
    }
}

#[test]
fn single_file_can_be_mounted_with_another_owner() {
    for runtime in TestRuntime::ALL {
        let mut parts = parts("/tmp", "stat -c %u /file; echo x > /file");
        let MountSource::Trusted { path, .. } = &mut parts.options.mounts[0].source else {
            panic!()
        };
        *path = path.join("mine");
        parts.options.mounts[0].target = "/file".into();
        assert_eq!(parts.run(runtime).success(), "0\n", "{runtime}");
        assert_eq!(fs::read_to_string(parts.host("work/mine")).unwrap(), "x\n", "{runtime}");
    }
}

#[test]
fn other_users_are_the_unknown_user_on_the_host() {
    for runtime in TestRuntime::ALL {
        let script = "cd /work; echo x > made; /bin/busybox chown 5:6 made; stat -c %u:%g made";
        let parts = parts("/tmp", script);
        assert_eq!(parts.run(runtime).success(), "5:6\n", "{runtime}");
        let made = fs::metadata(parts.host("work/made")).unwrap();
        let first = PrivateIds::default().first;
        assert_eq!((made.uid(), made.gid()), (first + 5, first + 6), "{runtime}");
    }
}

/// Creates a container with /proc, whose owners cannot be mapped, at /work.
fn parts_of_proc(script: &str) -> TestBundle {
    let mut parts = parts("/tmp", script);
    let MountSource::Trusted { path, .. } = &mut parts.options.mounts[0].source else { panic!() };
    *path = "/proc".into();
    parts
}

#[test]
fn file_system_without_id_mapping_is_rejected() {
    let mut parts = parts_of_proc("true");
    parts.add_user_namespace();
    let error = parts.write().unwrap_err().to_string();
    let expected = ["cannot map owners", "mount it read-only", "keep"];
    assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    // Without a user namespace, root of the container could read root's files.
    let mut parts = parts_of_proc("true");
    parts.options.mounts[0].read_only = true;
    let error = parts.write().unwrap_err().to_string();
    assert!(error.contains("cannot map owners") && !error.contains("read-only"), "{error}");
}

#[test]
fn file_system_without_id_mapping_is_mounted_where_owners_do_not_matter() {
    for runtime in TestRuntime::ALL {
        let mut parts = parts_of_proc("stat -c %u /work/version; cat /work/1/environ 2>&1");
        parts.options.mounts[0].read_only = true;
        parts.add_user_namespace();
        let written = parts.write().unwrap();
        assert!(written.warnings[0].contains("cannot map owners"), "{:?}", written.warnings);
        let out = parts.run_written(runtime, &written).stdout;
        assert!(out.starts_with("65534\n") && out.contains("ermission denied"), "{runtime}: {out}");
        let script = "stat -c %u /work/version; echo 1 > /work/self/clear_refs";
        let privileged = || {
            let mut parts = parts_of_proc(script);
            parts.options.security.privileged = true;
            parts
        };
        let parts = privileged();
        let written = parts.write().unwrap();
        assert!(written.warnings[0].contains("belong to root"), "{:?}", written.warnings);
        assert_eq!(parts.run_written(runtime, &written).success(), "0\n", "{runtime}");
        // Another user of the host.
        let mut parts = privileged();
        parts.options.user = Some("7".to_owned());
        parts.write().unwrap_err();
        // A directory of the runner.
        let mut parts = privileged();
        parts.options.mounts[0].id_mapping = Some(IdMapping::User {
            host_uid: RUNNER.0,
            host_gid: RUNNER.1,
            user: None,
            is_required: true,
        });
        parts.write().unwrap_err();
    }
}

#[test]
fn failure_of_a_later_step_leaves_no_mounts() {
    let mut parts = parts("/tmp", "true");
    parts.options.sysctls.insert("kernel.core_pattern".to_owned(), "x".to_owned());
    parts.write().unwrap_err();
    assert!(!parts.host("bundle/mounts").exists());
    assert!(parts.host("work/mine").exists());
}
