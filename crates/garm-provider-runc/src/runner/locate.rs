//! Search for a runner in an image.

use std::path::{Path, PathBuf};

use oci_hooks_engine::rootfs::LayerStack;
use oci_hooks_files::fs::PathError;

use crate::boot::Forge;

/// Directories of GitHub's runner in images, most common first.
const GITHUB_DIRS: [&str; 5] = [
    "/home/runner/actions-runner",
    "/home/runner",
    "/actions-runner",
    "/opt/actions-runner",
    "/runner",
];

/// Names of Gitea's runner, followed by a version in the names of its releases.
pub const GITEA_NAMES: [&str; 2] = ["act_runner", "gitea-runner"];

/// Directories of Gitea's runner in images.
const GITEA_DIRS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// A runner in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedRunner {
    /// Directory of the runner; GitHub's runner writes to it.
    pub dir: PathBuf,
    pub program: PathBuf,
    pub forge: Forge,
}

/// Searches the usual directories for a runner, of this forge if given. Layers are directories, bottom to top.
pub fn locate(
    layers: &[PathBuf],
    forge: Option<Forge>,
) -> Result<Option<LocatedRunner>, PathError> {
    for dir in GITHUB_DIRS.into_iter().chain(GITEA_DIRS) {
        let located = locate_in(layers, Path::new(dir))?;
        if let Some(located) = located.filter(|l| forge.is_none_or(|forge| l.forge == forge)) {
            return Ok(Some(located));
        }
    }
    Ok(None)
}

/// Searches one directory of the image for a runner.
pub fn locate_in(layers: &[PathBuf], dir: &Path) -> Result<Option<LocatedRunner>, PathError> {
    let stack = LayerStack::new(layers);
    let located = |name: &str, forge| {
        Ok(Some(LocatedRunner { dir: dir.to_owned(), program: dir.join(name), forge }))
    };
    if stack.has_program(&dir.join("run.sh"))?
        && stack.has_program(&dir.join("bin/Runner.Listener"))?
    {
        return located("run.sh", Forge::Github);
    }
    for name in GITEA_NAMES {
        if stack.has_program(&dir.join(name))? {
            return located(name, Forge::Gitea);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn runner_is_found_at_known_paths_of_images() {
        let dir = tempfile::tempdir().unwrap();
        let layers: Vec<PathBuf> = ["0", "1"].map(|name| dir.path().join(name)).into();
        let put = |layer: usize, path: &str, mode: u32| {
            let path = layers[layer].join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put(1, "usr/bin/sh", 0o755);
        put(0, "usr/local/bin/act_runner", 0o644);
        let locate_any = |layers: &[PathBuf]| locate(layers, None);
        assert_eq!(locate_any(&layers).unwrap(), None);
        put(1, "usr/bin/gitea-runner", 0o755);
        let found = locate_any(&layers).unwrap().unwrap();
        assert_eq!(
            (found.forge, &*found.program),
            (Forge::Gitea, Path::new("/usr/bin/gitea-runner"))
        );
        // Files of the runner may be in different layers.
        put(0, "home/runner/bin/Runner.Listener", 0o755);
        assert_eq!(locate_any(&layers).unwrap().unwrap().forge, Forge::Gitea);
        assert_eq!(locate(&layers, Some(Forge::Github)).unwrap(), None);
        put(1, "home/runner/run.sh", 0o755);
        let found = locate_any(&layers).unwrap().unwrap();
        assert_eq!((found.forge, &*found.dir), (Forge::Github, Path::new("/home/runner")));
        let found = locate(&layers, Some(Forge::Gitea)).unwrap().unwrap();
        assert_eq!(&*found.dir, Path::new("/usr/bin"));
        assert_eq!(locate_in(&layers, Path::new("/opt")).unwrap(), None);
        put(0, "opt/my/run.sh", 0o755);
        put(0, "opt/my/bin/Runner.Listener", 0o755);
        let found = locate_in(&layers, Path::new("/opt/my")).unwrap().unwrap();
        assert_eq!(&*found.program, Path::new("/opt/my/run.sh"));
    }
}
