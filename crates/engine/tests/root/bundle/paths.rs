//! Paths that an image or a request redirects.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use oci_hooks_engine::bundle::{
    BundleError, ExecOptions, MountPropagation, MountRequest, MountSource, TmpfsMount, UserError,
    process,
};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;

use crate::bundle::container::TestBundle;

fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_working_directory_in_proc_is_rejected() {
    for number in 3..=64 {
        for path in [format!("/proc/self/fd/{number}"), format!("/x/../proc//self/fd/{number}")] {
            let mut parts = TestBundle::new("pwd");
            parts.image.working_dir.clone_from(&path);
            let error = parts.write().unwrap_err();
            assert!(matches!(error, BundleError::CwdInProc { .. }), "{path}: {error}");
            let config = serde_json::json!({"process": {}});
            let exec = ExecOptions {
                args: vec!["pwd".into()],
                cwd: Some(path.into()),
                ..ExecOptions::default()
            };
            assert!(matches!(process(&config, &exec), Err(BundleError::CwdInProc { .. })));
        }
    }
}

#[test]
fn a_link_to_a_working_directory_in_proc_is_rejected() {
    // With and without the directories in the image.
    for is_there in [true, false] {
        let mut parts = TestBundle::new("pwd");
        if is_there {
            fs::create_dir_all(parts.layer("/proc/self/fd/7")).unwrap();
        }
        symlink("/proc/self/fd/7", parts.layer("/work")).unwrap();
        parts.image.working_dir = "/work".to_owned();
        assert!(parts.write().is_err(), "{is_there}");
    }
}

#[test]
fn working_directory_is_created_only_inside_the_container() {
    for runtime in TestRuntime::ALL {
        let outside = program::temporary_directory();
        let name = outside.path().strip_prefix("/").unwrap();
        let mut parts = TestBundle::new("pwd; ls -ld . | head -c10");
        symlink("/", parts.layer("/link")).unwrap();
        parts.image.user = "app".to_owned();
        parts.image.working_dir = format!("/link/{}/made", name.display());
        let out = parts.run(runtime).success();
        assert!(out.contains("/made\ndrwxr-xr-x"), "{runtime}: {out}");
        assert_eq!(entries(outside.path()), <[PathBuf; 0]>::default(), "{runtime}");
    }
}

#[test]
fn working_directory_in_a_mount_is_created_in_the_mount() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("pwd; ls -ld /scratch/a | head -c4");
        let memory = MountSource::Tmpfs(TmpfsMount::default());
        parts.options.mounts =
            vec![MountRequest { source: memory, ..bind_mount(&parts, "/scratch") }];
        parts.options.cwd = Some("/scratch/a/b".into());
        let out = parts.run(runtime).success();
        assert_eq!(out, "/scratch/a/b\ndrwx", "{runtime}");
    }
}

#[test]
fn containers_cannot_change_the_runtimes_program() {
    for runtime in TestRuntime::ALL {
        let path = program::find(&runtime.to_string());
        let before = fs::read(&path).unwrap();
        let mut parts = TestBundle::new("");
        parts.image.entrypoint = Some(vec!["/proc/self/exe".to_owned()]);
        parts.image.cmd = Some(vec!["--version".to_owned()]);
        let written = parts.write().unwrap();
        parts.run_written(runtime, &written);
        let mut parts = TestBundle::new("echo x > /proc/1/exe; true");
        parts.options.security.no_new_privileges = false;
        parts.run(runtime);
        assert!(fs::read(&path).unwrap() == before, "{runtime}");
    }
}

#[test]
fn file_systems_are_not_mounted_through_links_of_the_image() {
    for name in ["proc", "sys", "dev"] {
        let parts = TestBundle::new("true");
        fs::remove_dir(parts.layer(name)).unwrap();
        symlink("/", parts.layer(name)).unwrap();
        let error = parts.write().unwrap_err();
        assert!(matches!(error, BundleError::NotADirectory { .. }), "{name}: {error}");
    }
}

/// Mounts a directory with a file in it.
fn bind_mount(parts: &TestBundle, target: &str) -> MountRequest {
    let path = parts.host("source");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("file"), "").unwrap();
    MountRequest {
        target: target.into(),
        source: MountSource::Trusted {
            path,
            propagation: MountPropagation::Private,
            recursive: true,
        },
        read_only: false,
        subpath: None,
        id_mapping: None,
    }
}

#[test]
fn mount_targets_are_created_and_resolved_inside_the_container() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("ls /etc/made/target /etc/by-link");
        symlink("/etc", parts.layer("link")).unwrap();
        let mounts = ["/etc/made/target", "/link/by-link"].map(|target| bind_mount(&parts, target));
        parts.options.mounts = mounts.into();
        let out = parts.run(runtime).success();
        assert_eq!(out.matches("file\n").count(), 2, "{runtime}: {out}");
    }
}

#[test]
fn image_volumes_are_filled_and_outlive_the_root() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("cat /data/seed; echo x > /data/made");
        fs::create_dir(parts.layer("/data")).unwrap();
        fs::write(parts.layer("/data/seed"), "seed\n").unwrap();
        parts.image.volumes.insert("/data".to_owned());
        parts.options.read_only = true;
        let volumes = parts.host("volumes");
        parts.options.volume_root = Some(volumes.clone());
        assert_eq!(parts.run(runtime).success(), "seed\n", "{runtime}");
        assert!(volumes.join("0/made").exists(), "{runtime}");
        assert!(!parts.layer("/data/made").exists(), "{runtime}");
    }
}

#[test]
fn mount_targets_do_not_lead_out_of_the_container() {
    for runtime in TestRuntime::ALL {
        for up in ["", &"../".repeat(20)] {
            let outside = program::temporary_directory();
            let mut parts = TestBundle::new("true");
            symlink(format!("{up}{}", outside.path().display()), parts.layer("data")).unwrap();
            let memory = MountSource::Tmpfs(TmpfsMount::default());
            parts.options.mounts = vec![
                bind_mount(&parts, "/data/x"),
                MountRequest { source: memory, ..bind_mount(&parts, "/data/y") },
            ];
            let written = parts.write().unwrap();
            parts.run_written(runtime, &written).success();
            assert_eq!(entries(outside.path()), <[PathBuf; 0]>::default(), "{runtime}");
        }
    }
}

#[test]
fn volume_cannot_replace_the_devices() {
    for (target, link) in [("/dev", None), ("/link", Some("/dev")), ("/link/", Some("dev"))] {
        for is_volume in [true, false] {
            let mut parts = TestBundle::new("cat /proc/keys");
            fs::remove_dir(parts.layer("dev")).unwrap();
            if link.is_none() {
                fs::create_dir(parts.layer("dev")).unwrap();
                symlink("/proc/keys", parts.layer("dev/null")).unwrap();
            }
            if let Some(link) = link {
                symlink(link, parts.layer("link")).unwrap();
            }
            if is_volume {
                parts.image.volumes.insert(target.to_owned());
                parts.options.volume_root = Some(parts.host("volumes"));
            } else {
                parts.options.mounts = vec![bind_mount(&parts, target)];
            }
            let error = parts.write().unwrap_err();
            assert!(matches!(error, BundleError::MountOnDevices { .. }), "{target}: {error}");
        }
    }
}

#[test]
fn links_in_another_mount_do_not_lead_to_the_devices() {
    let mut parts = TestBundle::new("true");
    let outer = bind_mount(&parts, "/work");
    symlink("/dev", parts.host("source/link")).unwrap();
    parts.options.mounts = vec![outer, bind_mount(&parts, "/work/link")];
    let error = parts.write().unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot mount on /work/link: the path goes through a symlink in the mount /work: name a path \
         without symlinks"
    );
}

#[test]
fn unknown_users_are_rejected() {
    for (user, is_number) in [("4294967296", true), ("-1", true), ("nobody", false), ("0:-1", true)]
    {
        let mut parts = TestBundle::new("id");
        parts.image.user = user.to_owned();
        let error = parts.write().unwrap_err();
        let BundleError::User(error) = error else { panic!("{user}: {error}") };
        assert_eq!(matches!(error, UserError::OutOfRange { .. }), is_number, "{user}: {error}");
    }
}

#[test]
fn users_are_read_from_the_images_own_files() {
    let outside = program::temporary_directory();
    let passwd = outside.path().join("passwd");
    fs::write(&passwd, "evil:x:0:0::/:/bin/sh\n").unwrap();
    let mut parts = TestBundle::new("id");
    fs::remove_file(parts.layer("/etc/passwd")).unwrap();
    symlink(format!("{}{}", "../".repeat(20), passwd.display()), parts.layer("/etc/passwd"))
        .unwrap();
    parts.image.user = "evil".to_owned();
    assert!(matches!(parts.write(), Err(BundleError::User(UserError::UnknownUser { .. }))));
}
