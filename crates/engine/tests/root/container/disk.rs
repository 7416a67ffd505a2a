//! Containers with a disk limit.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_engine::container::{ContainerError, ContainerSpec, Engine};
use oci_hooks_image::Image;
use oci_hooks_testsupport::program::wait_until;
use rustix::mount::{MountFlags, mount};

use crate::container::setup::{mounts_below, spec, with_each_engine};

const LIMIT: u64 = 64 << 20;

fn limited<'a>(image: &'a Image, script: &str) -> ContainerSpec<'a> {
    let mut spec = spec(image, script);
    spec.disk_bytes = Some(LIMIT);
    spec
}

/// Returns the loop devices whose file is below a directory.
fn devices_of(dir: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let file = |device: &PathBuf| fs::read_to_string(device.join("loop/backing_file"));
    let is_ours =
        |device: &PathBuf| file(device).is_ok_and(|file| Path::new(&file).starts_with(dir));
    devices.filter(is_ours).collect()
}

/// Waits until no device is left. A runtime that starts meanwhile briefly has a copy of all mounts, which
/// keeps their devices.
fn wait_for_devices(engine: &Engine) {
    wait_until("loop devices are given back", || devices_of(&engine.disk).is_empty());
}

fn disk_of(engine: &Engine, spec: &ContainerSpec<'_>) -> (PathBuf, PathBuf) {
    let disk = engine.disk_of(&spec.id);
    let file = disk.with_extension("ext4");
    (disk, file)
}

#[test]
fn container_cannot_exceed_its_disk_limit() {
    with_each_engine(|engine, image| {
        let mut spec = limited(
            image,
            "dd if=/dev/zero of=/full bs=1M count=100 2>&1 | grep -q 'No space left' || exit 3
             rm /full /bin/cat && ! test -e /bin/cat || exit 4
             dd if=/dev/zero of=/data/full bs=1M count=100 2>&1 | grep -q 'No space left' || exit 5
             rm /data/full && dd if=/dev/zero of=/fits bs=1M count=40",
        );
        let (disk, file) = disk_of(engine, &spec);
        let mut anonymous = image.clone();
        anonymous.config.volumes.insert("/data".to_owned());
        spec.image = &anonymous;
        let prepared = engine.prepare(spec).unwrap();
        assert_eq!(devices_of(&engine.disk).len(), 1);
        assert_eq!(fs::metadata(&disk).unwrap().mode() & 0o7777, 0o700);
        let meta = fs::metadata(&file).unwrap();
        assert!(meta.len() == LIMIT && meta.blocks() * 512 < 1 << 20, "{meta:?}");
        let record = prepared.record().clone();
        let status = prepared.run(|_| ()).unwrap().status;
        assert!(status.success(), "{status}");
        assert!(!disk.exists() && !file.exists());
        wait_for_devices(engine);
        engine.remove(&record).unwrap();
    });
}

#[test]
fn a_running_container_is_removed_with_its_disk() {
    with_each_engine(|engine, image| {
        let spec = limited(image, "exec 3>/open; rm /open; sleep 1000 >&3");
        let (disk, file) = disk_of(engine, &spec);
        let record = engine.prepare(spec).unwrap().start().unwrap();
        assert_eq!(devices_of(&engine.disk).len(), 1);
        engine.remove(&record).unwrap();
        assert!(!disk.exists() && !file.exists());
        wait_for_devices(engine);
    });
}

#[test]
fn disk_leftovers_are_removed_wherever_the_creator_was_killed() {
    with_each_engine(|engine, image| {
        let phases: [fn(&Path, &Path); 4] = [
            |_, _| (),
            |_, file| fs::write(file, "").unwrap(),
            |disk, _| fs::create_dir(disk).unwrap(),
            |disk, file| {
                fs::create_dir(disk).unwrap();
                fs::write(file, "half").unwrap();
                mount("tmpfs", disk, "tmpfs", MountFlags::empty(), None).unwrap();
                fs::create_dir(disk.join("merged")).unwrap();
                let merged = disk.join("merged");
                mount("tmpfs", merged, "tmpfs", MountFlags::empty(), None).unwrap();
            },
        ];
        for phase in phases {
            let spec = spec(image, "true");
            let (disk, file) = disk_of(engine, &spec);
            let prepared = engine.prepare(spec).unwrap();
            let record = prepared.record().clone();
            drop(prepared);
            phase(&disk, &file);
            engine.remove(&record).unwrap();
            assert!(!disk.exists() && !file.exists());

            phase(&disk, &file);
            let is_there = disk.exists() || file.exists();
            assert_eq!(engine.remove_orphans().unwrap(), usize::from(is_there));
            assert!(!disk.exists() && !file.exists());
            assert_eq!(mounts_below(&engine.disk), "");
        }
    });
}

#[test]
fn disk_limit_too_small_for_a_file_system_is_an_error() {
    with_each_engine(|engine, image| {
        let mut spec = spec(image, "true");
        spec.disk_bytes = Some(1000);
        let error = engine.prepare(spec).unwrap_err();
        assert!(matches!(error, ContainerError::Mkfs { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("cannot make a file system in ") && text.len() > 150, "{text}");
    });
}

#[test]
fn many_limited_disks_are_made_at_once() {
    with_each_engine(|engine, image| {
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let status = engine.prepare(limited(image, "touch /x")).unwrap().run(|_| ());
                    assert!(status.unwrap().status.success());
                });
            }
        });
        wait_for_devices(engine);
    });
}
