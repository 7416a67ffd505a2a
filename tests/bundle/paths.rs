//! Paths that an image or a request sends elsewhere.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use oci_hooks::bundle::{
    BundleError, ExecOptions, Mount, MountSource, Propagation, Tmpfs, UserError, process,
};

use crate::container::Parts;
use crate::support::program;
use crate::support::runtime::Runtime;

fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_working_directory_in_proc_is_refused() {
    for number in 3..=64 {
        for path in [format!("/proc/self/fd/{number}"), format!("/x/../proc//self/fd/{number}")] {
            let mut parts = Parts::new("pwd");
            parts.image.working_dir.clone_from(&path);
            let error = parts.write().unwrap_err();
            assert!(matches!(error, BundleError::CwdInProc { .. }), "{path}: {error}");
            let config = serde_json::json!({"process": {}});
            let mut exec = ExecOptions::default();
            exec.args = vec!["pwd".into()];
            exec.cwd = Some(path.into());
            assert!(matches!(process(&config, &exec), Err(BundleError::CwdInProc { .. })));
        }
    }
}

#[test]
fn a_link_to_a_working_directory_in_proc_is_refused() {
    // With the directories in the image, or without.
    for is_there in [true, false] {
        let mut parts = Parts::new("pwd");
        if is_there {
            fs::create_dir_all(parts.layer("/proc/self/fd/7")).unwrap();
        }
        symlink("/proc/self/fd/7", parts.layer("/work")).unwrap();
        parts.image.working_dir = "/work".to_owned();
        assert!(parts.write().is_err(), "{is_there}");
    }
}

#[test]
fn a_working_directory_is_made_in_the_container_only() {
    for runtime in Runtime::ALL {
        let outside = program::temporary_directory();
        let name = outside.path().strip_prefix("/").unwrap();
        let mut parts = Parts::new("pwd; ls -ld . | head -c10");
        symlink("/", parts.layer("/link")).unwrap();
        parts.image.user = "app".to_owned();
        parts.image.working_dir = format!("/link/{}/made", name.display());
        let out = parts.run(runtime).success();
        assert!(out.contains("/made\ndrwxr-xr-x"), "{runtime}: {out}");
        assert_eq!(entries(outside.path()), <[PathBuf; 0]>::default(), "{runtime}");
    }
}

#[test]
fn a_working_directory_in_a_mount_is_made_there() {
    for runtime in Runtime::ALL {
        let mut parts = Parts::new("pwd; ls -ld /scratch/a | head -c4");
        let memory = MountSource::Tmpfs(Tmpfs::default());
        parts.options.mounts = vec![Mount { source: memory, ..bind(&parts, "/scratch") }];
        parts.options.cwd = Some("/scratch/a/b".into());
        let out = parts.run(runtime).success();
        assert_eq!(out, "/scratch/a/b\ndrwx", "{runtime}");
    }
}

#[test]
fn the_runtime_s_own_program_stays_as_it_is() {
    for runtime in Runtime::ALL {
        let path = program::find(&runtime.to_string());
        let before = fs::read(&path).unwrap();
        let mut parts = Parts::new("");
        parts.image.entrypoint = Some(vec!["/proc/self/exe".to_owned()]);
        parts.image.cmd = Some(vec!["--version".to_owned()]);
        let written = parts.write().unwrap();
        parts.run_written(runtime, &written);
        let mut parts = Parts::new("echo x > /proc/1/exe; true");
        parts.options.security.no_new_privileges = false;
        parts.run(runtime);
        assert!(fs::read(&path).unwrap() == before, "{runtime}");
    }
}

#[test]
fn file_systems_are_not_mounted_through_links_of_the_image() {
    for name in ["proc", "sys", "dev"] {
        let parts = Parts::new("true");
        fs::remove_dir(parts.layer(name)).unwrap();
        symlink("/", parts.layer(name)).unwrap();
        let error = parts.write().unwrap_err();
        assert!(matches!(error, BundleError::NotADirectory { .. }), "{name}: {error}");
    }
}

/// Mounts a directory with a file in it.
fn bind(parts: &Parts, target: &str) -> Mount {
    let path = parts.host("source");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("file"), "").unwrap();
    Mount {
        target: target.into(),
        source: MountSource::Trusted { path, propagation: Propagation::Private, recursive: true },
        read_only: false,
        subpath: None,
        id_mapping: None,
    }
}

#[test]
fn mount_targets_are_made_and_followed_in_the_container() {
    for runtime in Runtime::ALL {
        let mut parts = Parts::new("ls /etc/made/target /etc/by-link");
        symlink("/etc", parts.layer("link")).unwrap();
        let mounts = ["/etc/made/target", "/link/by-link"].map(|target| bind(&parts, target));
        parts.options.mounts = mounts.into();
        let out = parts.run(runtime).success();
        assert_eq!(out.matches("file\n").count(), 2, "{runtime}: {out}");
    }
}

#[test]
fn volumes_of_the_image_have_its_files_and_outlive_the_root() {
    for runtime in Runtime::ALL {
        let mut parts = Parts::new("cat /data/seed; echo x > /data/made");
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
    for runtime in Runtime::ALL {
        for up in ["", &"../".repeat(20)] {
            let outside = program::temporary_directory();
            let mut parts = Parts::new("true");
            symlink(format!("{up}{}", outside.path().display()), parts.layer("data")).unwrap();
            let memory = MountSource::Tmpfs(Tmpfs::default());
            parts.options.mounts =
                vec![bind(&parts, "/data/x"), Mount { source: memory, ..bind(&parts, "/data/y") }];
            let written = parts.write().unwrap();
            parts.run_written(runtime, &written).success();
            assert_eq!(entries(outside.path()), <[PathBuf; 0]>::default(), "{runtime}");
        }
    }
}

#[test]
fn no_volume_takes_the_place_of_the_devices() {
    for (target, link) in [("/dev", None), ("/link", Some("/dev")), ("/link/", Some("dev"))] {
        for is_volume in [true, false] {
            let mut parts = Parts::new("cat /proc/keys");
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
                parts.options.mounts = vec![bind(&parts, target)];
            }
            let error = parts.write().unwrap_err();
            assert!(matches!(error, BundleError::MountOnDevices { .. }), "{target}: {error}");
        }
    }
}

#[test]
fn a_mount_is_not_led_to_the_devices_by_a_link_in_another_one() {
    let mut parts = Parts::new("true");
    let outer = bind(&parts, "/work");
    symlink("/dev", parts.host("source/link")).unwrap();
    parts.options.mounts = vec![outer, bind(&parts, "/work/link")];
    let error = parts.write().unwrap_err().to_string();
    assert_eq!(error, "cannot mount on /work/link: it goes through a symlink in /work");
}

#[test]
fn users_that_are_nobody_are_refused() {
    for (user, is_number) in [("4294967296", true), ("-1", true), ("nobody", false), ("0:-1", true)]
    {
        let mut parts = Parts::new("id");
        parts.image.user = user.to_owned();
        let error = parts.write().unwrap_err();
        let BundleError::User(error) = error else { panic!("{user}: {error}") };
        assert_eq!(matches!(error, UserError::OutOfRange { .. }), is_number, "{user}: {error}");
    }
}

#[test]
fn users_are_read_from_the_image_s_own_files() {
    let outside = program::temporary_directory();
    let passwd = outside.path().join("passwd");
    fs::write(&passwd, "evil:x:0:0::/:/bin/sh\n").unwrap();
    let mut parts = Parts::new("id");
    fs::remove_file(parts.layer("/etc/passwd")).unwrap();
    symlink(format!("{}{}", "../".repeat(20), passwd.display()), parts.layer("/etc/passwd"))
        .unwrap();
    parts.image.user = "evil".to_owned();
    assert!(matches!(parts.write(), Err(BundleError::User(UserError::UnknownUser { .. }))));
}
