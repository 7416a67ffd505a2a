//! Containers with a user namespace, and nested mounts that are assembled on the stage.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

use oci_hooks_engine::bundle::{
    BundleError, HostDevice, IdMapping, MountPropagation, MountRequest, MountSource, TmpfsMount,
    volume_users,
};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_testsupport::runtime::TestRuntime;

use crate::bundle::container::TestBundle;

const RUNNER: (u32, u32) = (1234, 1235);

/// Creates a container with a user namespace and a directory of the runner at /work.
fn parts(script: &str) -> TestBundle {
    let mut parts = TestBundle::new(script);
    parts.add_user_namespace();
    let work = parts.host("work");
    fs::create_dir_all(work.join("_temp")).unwrap();
    for path in [&work, &work.join("_temp")] {
        chown(path, Some(RUNNER.0), Some(RUNNER.1)).unwrap();
    }
    let file = HostFile::open_trusted(&work).unwrap();
    let propagation = MountPropagation::Private;
    parts.options.mounts.push(MountRequest {
        target: "/work".into(),
        source: MountSource::Bind { file, propagation, recursive: true },
        subpath: None,
        read_only: false,
        id_mapping: Some(IdMapping::User {
            host_uid: RUNNER.0,
            host_gid: RUNNER.1,
            user: None,
            is_required: false,
        }),
    });
    parts
}

fn volume(parts: &TestBundle, name: &str, target: &str) -> MountRequest {
    let path = parts.host("volumes").join(name);
    MountRequest {
        target: target.into(),
        source: MountSource::Volume { path, copy: true, is_shared: true },
        subpath: None,
        read_only: false,
        id_mapping: None,
    }
}

#[test]
fn container_root_is_an_unprivileged_user_on_the_host() {
    for runtime in TestRuntime::ALL {
        let script = "id -u; cat /proc/self/uid_map; cd /work; echo x >made; mkdir d
            /bin/busybox chown 5:6 d; stat -c %u:%g made d _temp /etc/passwd
            /bin/busybox mknod disk b 7 6 2>/dev/null || echo no device
            echo 127.0.0.9 here >>/etc/hosts && /bin/busybox tail -n 1 /etc/hosts";
        let mut parts = parts(script);
        parts.options.hosts = Some(Vec::new());
        let out = parts.run(runtime).success();
        let PrivateIds { first, count } = PrivateIds::default();
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[0], "0", "{runtime}");
        let map: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(map, ["0", &first.to_string(), &count.to_string()], "{runtime}");
        let expected = ["0:0", "5:6", "0:0", "0:0", "no device", "127.0.0.9 here"];
        assert_eq!(lines[2..], expected, "{runtime}");
        let owner = |name: &str| {
            let made = fs::metadata(parts.host("work").join(name)).unwrap();
            (made.uid(), made.gid())
        };
        assert_eq!((owner("made"), owner("d")), (RUNNER, (first + 5, first + 6)), "{runtime}");
    }
}

#[test]
fn host_devices_can_be_granted() {
    for runtime in TestRuntime::ALL {
        let mut parts =
            parts("stat -c %u:%a /dev/given; /bin/busybox head -c 3 /dev/given | wc -c");
        parts.options.devices = vec![HostDevice {
            host: HostFile::open_trusted("/dev/zero".as_ref()).unwrap(),
            container: "/dev/given".into(),
            access: "rw".parse().unwrap(),
        }];
        assert_eq!(parts.run(runtime).success(), "0:666\n3\n", "{runtime}");
    }
}

#[test]
fn nested_mounts_are_assembled_without_following_links() {
    for runtime in TestRuntime::ALL {
        // Missing mount points are created, in the runner's directory as the container's user.
        let mut whole =
            parts("cd /work; cat new/deep/seed; cat file; grep -c ' /work' /proc/mounts");
        fs::create_dir(whole.layer("/seeded")).unwrap();
        fs::write(whole.layer("/seeded/seed"), "from the image\n").unwrap();
        fs::write(whole.host("single"), "one file\n").unwrap();
        let propagation = MountPropagation::Private;
        let single =
            MountSource::Trusted { path: whole.host("single"), propagation, recursive: false };
        let memory = MountSource::Tmpfs(TmpfsMount::default());
        let seeded = volume(&whole, "seeded", "/seeded");
        whole.options.mounts.push(seeded);
        whole.run(runtime).success();
        let mounts = [
            volume(&whole, "seeded", "/work/new/deep"),
            MountRequest { source: single, ..volume(&whole, "x", "/work/file") },
            MountRequest { source: memory, ..volume(&whole, "x", "/work/memory") },
        ];
        whole.options.mounts.pop();
        whole.options.mounts.extend(mounts);
        assert_eq!(whole.run(runtime).success(), "from the image\none file\n4\n", "{runtime}");
        for name in ["new", "new/deep", "file", "memory"] {
            let made = fs::metadata(whole.host("work").join(name)).unwrap();
            assert_eq!((made.uid(), made.gid()), RUNNER, "{runtime}: {name}");
        }

        // Symlinks in the mounted directory, or in the image to there, are not followed.
        for target in ["/work/link/x", "/work/link", "/alias/x"] {
            let mut parts = parts("true");
            symlink("/etc", parts.host("work/link")).unwrap();
            symlink("/work/link", parts.layer("alias")).unwrap();
            let mount = volume(&parts, "data", target);
            parts.options.mounts.push(mount);
            let error = parts.write().unwrap_err();
            assert!(matches!(error, BundleError::MountThroughLink { .. }), "{target}: {error}");
        }
    }
}

#[test]
fn files_of_volumes_belong_to_no_user_of_the_host() {
    for runtime in TestRuntime::ALL {
        let (stored, private) = (PrivateIds::STORED.first, PrivateIds::default().first);
        for (has_users, is_shared, first) in
            [(true, true, stored), (true, false, private), (false, true, stored)]
        {
            let context = format!("{runtime}, {has_users}, {is_shared}");
            let script = "stat -c %u:%g /data/mine /data; echo x >/data/made";
            // Without a user namespace, a container has all ids.
            let large = "; echo x >/data/large && /bin/busybox chown 70000:70000 /data/large";
            let script = if has_users { script.to_owned() } else { format!("{script}{large}") };
            let mut parts = if has_users { parts(&script) } else { TestBundle::new(&script) };
            fs::create_dir(parts.layer("/data")).unwrap();
            fs::write(parts.layer("/data/mine"), "").unwrap();
            chown(parts.layer("/data/mine"), Some(1000), Some(100)).unwrap();
            let path = parts.host("volumes/data");
            let source = MountSource::Volume { path: path.clone(), copy: true, is_shared };
            let mount = MountRequest { source, ..volume(&parts, "data", "/data") };
            parts.options.mounts.push(mount);
            let record = parts.host("record");
            fs::create_dir(&record).unwrap();
            parts.options.record = Some(record.clone());
            for _ in 0..2 {
                assert_eq!(parts.run(runtime).success(), "1000:100\n0:0\n", "{context}");
            }
            let owner = |name: &str| fs::metadata(path.join(name)).unwrap().uid();
            let found = ["", "mine", "made"].map(owner);
            assert_eq!(found, [first, first + 1000, first], "{context}");
            assert!(has_users || owner("large") == 70000, "{context}");
            assert!(volume_users(&path).unwrap().0.contains(&record), "{context}");
        }
    }
}

#[test]
fn volume_in_use_is_not_filled() {
    let mut parts = parts("true");
    fs::create_dir(parts.layer("/data")).unwrap();
    fs::write(parts.layer("/data/seed"), "").unwrap();
    let mount = volume(&parts, "data", "/data");
    parts.options.mounts.push(mount);
    let [first, second] = ["first", "second"].map(|name| parts.host(name));
    for record in [&first, &second] {
        fs::create_dir(record).unwrap();
    }
    let count = |parts: &TestBundle| fs::read_dir(parts.host("volumes/data")).unwrap().count();
    // The first container's target does not exist in the image, which leaves the volume empty.
    parts.options.mounts[1].target = "/nothing".into();
    parts.options.record = Some(first.clone());
    parts.write().unwrap();
    parts.clear();
    parts.options.mounts[1].target = "/data".into();
    parts.options.record = Some(second);
    parts.write().unwrap();
    parts.clear();
    assert_eq!(count(&parts), 0, "it was filled under somebody's feet");
    // Both containers are removed.
    for record in ["first", "second"] {
        fs::remove_dir(parts.host(record)).unwrap();
    }
    parts.write().unwrap();
    parts.clear();
    assert_eq!(count(&parts), 1);
}

#[test]
fn paths_unreachable_for_namespace_root_are_named() {
    let parts = parts("true");
    let dir = parts.host("");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let error = parts.write().unwrap_err().to_string();
    assert!(error.contains("user-namespace") && error.contains("chmod o+x"), "{error}");
}

#[test]
fn user_outside_of_the_id_range_is_rejected() {
    let mut parts = parts("true");
    parts.image.user = "65536".to_owned();
    let error = parts.write().unwrap_err().to_string();
    assert!(error.contains("0 to 65535, not 65536"), "{error}");
}
