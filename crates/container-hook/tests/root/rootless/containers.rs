//! Rootless containers run with the library: their mounts, devices and users.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_engine::bundle::{
    ContainerInit, DeviceAccess, HostDevice, MountPropagation, MountRequest, MountSource,
};
use oci_hooks_engine::container::{
    ContainerError, ContainerRole, ContainerSpec, Engine, MonitorProgram,
};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_files::error::chain;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{Image, ImageStore, StoreOptions};
use oci_hooks_testsupport::{busybox, program, runtime};

use crate::rootless::namespace::{FOREIGN_DEVICE, MOUNTED_BELOW, run_for_each_privilege};

/// Calls a test with an engine for each runtime.
fn with_each_engine(privilege: Privilege, dir: &Path, test: impl Fn(&Engine, &Image)) {
    for runtime in runtime::TestRuntime::ALL {
        let (root, run) = (dir.join("store"), dir.join("run"));
        let mut options = StoreOptions::new(&root, &run);
        options.privilege = privilege;
        let store = ImageStore::open(options).unwrap();
        let image = busybox::image(&store);
        // Users run the runtime without the wrapper that root's tests use.
        let program = match privilege {
            Privilege::Root => runtime.command().get_program().into(),
            Privilege::Mapped(_) | Privilege::Single => program::find(&runtime.to_string()),
        };
        let engine = Engine {
            store,
            runtime: OciRuntime::new(program, run.join("runtime")),
            run,
            disk: root,
            // The output of these containers is discarded.
            monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
            privilege,
        };
        test(&engine, &image);
        assert!(engine.containers().unwrap().is_empty());
    }
}

fn bind_mount(path: &Path, target: &str, read_only: bool) -> MountRequest {
    let (path, propagation) = (path.to_owned(), MountPropagation::Private);
    let source = MountSource::Trusted { path, propagation, recursive: false };
    MountRequest { target: target.into(), source, subpath: None, read_only, id_mapping: None }
}

/// Returns a container that runs a script, with a directory mounted at `/work`.
fn spec<'a>(image: &'a Image, work: &Path, script: &str) -> ContainerSpec<'a> {
    let mut spec = ContainerSpec::new(ContainerRole::Step, "test", image);
    spec.options.args = ["sh", "-c", script].map(str::to_owned).into();
    spec.options.mounts = vec![bind_mount(work, "/work", false)];
    spec
}

fn work_directory(dir: &Path) -> PathBuf {
    let work = dir.join("work");
    fs::create_dir_all(&work).unwrap();
    work
}

fn run(engine: &Engine, spec: ContainerSpec<'_>) -> Option<i32> {
    engine.prepare(spec).unwrap().run(|_| ()).unwrap().status.code()
}

/// Prints properties of a container that depend on the user's permissions.
const LOOK: &str = "exec >/work/found 2>&1
    touch /read-only/x && echo 'what is read-only was written to'
    [ -e /all/from-work ] || echo 'a directory does not show its files'
    touch /work/made
    head -c 1 /dev/nil | od -An -tx1
    cat /proc/sys/net/ipv4/ping_group_range
    ls -d /dev/pts /dev/mqueue /sys/kernel /sys/fs/cgroup
    ls -d /all/below";

#[test]
fn mounts_devices_and_sysctls_match_the_users_permissions() {
    let test = "rootless::containers::mounts_devices_and_sysctls_match_the_users_permissions";
    run_for_each_privilege(test, |privilege, dir| {
        let work = work_directory(dir);
        fs::write(work.join("from-work"), "").unwrap();
        with_each_engine(privilege, dir, |engine, image| {
            let mut spec = spec(image, &work, LOOK);
            spec.options.mounts.push(bind_mount(&work, "/read-only", true));
            spec.options.mounts.push(bind_mount(&work, "/all", false));
            spec.options.devices = vec![HostDevice {
                host: HostFile::open_trusted("/dev/zero".as_ref()).unwrap(),
                container: "/dev/nil".into(),
                access: "r".parse().unwrap(),
            }];
            let (program, args) = (engine.init_program().unwrap(), Vec::new());
            spec.options.init = Some(ContainerInit { program, args, idle_only: false });
            run(engine, spec).unwrap();
            let found = fs::read_to_string(work.join("found")).unwrap();
            let lines: Vec<_> = found.lines().map(str::trim).collect();
            let range = match privilege {
                Privilege::Root => "0\t2147483647".to_owned(),
                Privilege::Mapped(ids) => format!("0\t{}", ids.gids - 1),
                // The kernel's default is an empty range, shown as the overflow id in a user namespace.
                Privilege::Single => "65534\t65534".to_owned(),
            };
            let below = if work.join(MOUNTED_BELOW).exists() {
                "/all/below"
            } else {
                "ls: /all/below: No such file or directory"
            };
            let expected = [
                "touch: /read-only/x: Read-only file system",
                "00",
                &range,
                "/dev/mqueue",
                "/dev/pts",
                "/sys/fs/cgroup",
                "/sys/kernel",
                below,
            ];
            assert_eq!(lines, expected, "{privilege:?} with {:?} in {dir:?}", engine.runtime);
            fs::remove_file(work.join("made")).unwrap();
        });
    });
}

#[test]
fn inaccessible_device_is_named_before_the_container_starts() {
    let test = "rootless::containers::inaccessible_device_is_named_before_the_container_starts";
    run_for_each_privilege(test, |privilege, dir| {
        let work = work_directory(dir);
        let Some(device) =
            dir.ancestors().map(|above| above.join(FOREIGN_DEVICE)).find(|p| p.exists())
        else {
            assert_eq!(privilege, Privilege::Root);
            return;
        };
        with_each_engine(privilege, dir, |engine, image| {
            let mut spec = spec(image, &work, "echo ran >/work/ran");
            spec.options.devices = vec![HostDevice {
                host: HostFile::open_trusted(&device).unwrap(),
                container: "/dev/theirs".into(),
                access: DeviceAccess::all(),
            }];
            let error = engine.prepare(spec).map(drop).unwrap_err();
            let error = chain(&error);
            let expected = format!(
                "cannot add device {}: the user who runs the container may not open it for reading and writing",
                device.display()
            );
            assert!(error.starts_with(&expected) && error.contains("setfacl"), "{error}");
            assert!(!work.join("ran").exists());
        });
    });
}

#[test]
fn container_users_without_an_id_are_rejected_with_a_fix() {
    let test = "rootless::containers::container_users_without_an_id_are_rejected_with_a_fix";
    run_for_each_privilege(test, |privilege, dir| {
        let work = work_directory(dir);
        fs::set_permissions(&work, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        with_each_engine(privilege, dir, |engine, image| {
            let of_user = |user: &str| {
                let mut spec = spec(image, &work, "id -u >/work/id");
                spec.options.user = Some(user.to_owned());
                spec
            };
            let id = || fs::read_to_string(work.join("id")).unwrap();
            run(engine, of_user("0"));
            assert_eq!(id(), "0\n");
            fs::remove_file(work.join("id")).unwrap();
            match engine.prepare(of_user("1000:1000")) {
                Ok(container) if privilege != Privilege::Single => {
                    container.run(|_| ()).unwrap();
                    assert_eq!(id(), "1000\n");
                    fs::remove_file(work.join("id")).unwrap();
                }
                Err(ContainerError::Bundle(error)) if privilege == Privilege::Single => {
                    let error = error.to_string();
                    assert!(
                        error.contains("user 1000 is not available") && error.contains("--user 0"),
                        "{error}"
                    );
                }
                other => panic!("{privilege:?}: {other:?}"),
            }
        });
    });
}
