//! Containers of one busybox layer.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_engine::bundle::{self, Bundle, BundleError, BundleOptions};
use oci_hooks_engine::rootfs;
use oci_hooks_host::netns;
use oci_hooks_host::userns::NamespaceMapping;
use oci_hooks_image::ImageConfig;
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::rootfs as busybox;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::Value;
use tempfile::TempDir;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:100::/srv:/bin/sh\n";
const GROUP: &str = "root:x:0:\nusers:x:100:\nwheel:x:10:app\n";

/// Directory, image and options of a container, unmounted and removed when dropped.
pub(crate) struct TestBundle {
    dir: TempDir,
    pub(crate) image: ImageConfig,
    pub(crate) options: BundleOptions,
}

impl TestBundle {
    /// Creates an image that runs a shell script.
    pub(crate) fn new(script: &str) -> Self {
        Self::new_in(&std::env::temp_dir(), script)
    }

    /// Creates the container below a directory.
    pub(crate) fn new_in(directory: &Path, script: &str) -> Self {
        program::require_root();
        let dir = program::temporary_directory_in(directory);
        let layer = dir.path().join("layer");
        fs::create_dir(&layer).unwrap();
        busybox::fill(&layer);
        fs::write(layer.join("etc/passwd"), PASSWD).unwrap();
        fs::write(layer.join("etc/group"), GROUP).unwrap();
        fs::create_dir(dir.path().join("disk")).unwrap();
        let image = ImageConfig {
            cmd: Some(["/bin/sh", "-c", script].map(str::to_owned).into()),
            ..ImageConfig::default()
        };
        let options = BundleOptions {
            cgroups_path: Some(format!("/{}", program::unique_name())),
            ..BundleOptions::default()
        };
        TestBundle { dir, image, options }
    }

    /// Gives the container a user namespace.
    pub(crate) fn add_user_namespace(&mut self) {
        // Root of the user namespace must be able to reach the root file system.
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let pin = self.host("users");
        let namespace = NamespaceMapping::shifted(self.options.private_ids).namespace().unwrap();
        netns::pin(namespace.as_fd(), &pin).unwrap();
        self.options.user_namespace = Some(pin);
    }

    /// Returns a path in the image's layer.
    pub(crate) fn layer(&self, path: &str) -> PathBuf {
        self.dir.path().join("layer").join(path.trim_start_matches('/'))
    }

    /// Returns a path of the host that the test may use.
    pub(crate) fn host(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn disk(&self) -> PathBuf {
        self.host("disk")
    }

    fn bundle(&self) -> PathBuf {
        self.host("bundle")
    }

    pub(crate) fn mount(&self) -> rootfs::Rootfs {
        let layers = [self.dir.path().join("layer")];
        let (path, ids) = (&self.options.user_namespace, self.options.private_ids);
        let user_namespace = path.as_deref().map(|path| rootfs::UserNamespace { path, ids });
        let disk = self.disk();
        let request =
            rootfs::RootfsRequest { user_namespace, ..rootfs::RootfsRequest::new(&layers, &disk) };
        rootfs::mount(&request).unwrap()
    }

    /// Mounts the root file system, and writes the bundle.
    pub(crate) fn write(&self) -> Result<Bundle, BundleError> {
        let rootfs = self.mount();
        bundle::write(&self.image, &rootfs.path, &self.options, &self.bundle())
    }

    /// Unmounts the bundle and the root file system, and removes all changes.
    pub(crate) fn clear(&self) {
        for _ in 0..2 {
            bundle::unmount(&self.bundle()).unwrap();
            rootfs::unmount(&self.disk()).unwrap();
        }
        for dir in [self.disk(), self.bundle()].into_iter().filter(|dir| dir.exists()) {
            fs::remove_dir_all(dir).unwrap();
        }
        fs::create_dir(self.disk()).unwrap();
    }

    /// Runs the container to its end.
    #[track_caller]
    pub(crate) fn run(&self, runtime: TestRuntime) -> FinishedCommand {
        let written = self.write().unwrap();
        let warnings: &[String] = &[];
        assert_eq!(written.warnings, warnings);
        self.run_written(runtime, &written)
    }

    #[track_caller]
    pub(crate) fn run_written(&self, runtime: TestRuntime, written: &Bundle) -> FinishedCommand {
        let id = program::unique_name();
        let mut command = runtime.command();
        written.mounts.enter(&mut command).unwrap();
        command.arg("--root").arg(self.host("state")).arg("run");
        let finished = program::run(command.arg("--bundle").arg(self.bundle()).arg(&id));
        self.clear();
        finished
    }
}

impl Drop for TestBundle {
    fn drop(&mut self) {
        // A failed test has its own message.
        let _ = bundle::unmount(&self.bundle());
        let _ = rootfs::unmount(&self.disk());
        if let Some(pin) = &self.options.user_namespace {
            let _ = netns::unpin(pin);
        }
    }
}

pub(crate) fn config(bundle: &Bundle) -> Value {
    serde_json::from_slice(&bundle.config).unwrap()
}
