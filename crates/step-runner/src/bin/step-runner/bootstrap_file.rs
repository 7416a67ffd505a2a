//! `steps bootstrap FILE`: prepares the directory that gitlab-runner mounts into a build container.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};

use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{PathContext as _, PathError, create_private, random_u64};
use rustix::fs::OFlags;
use step_runner::gitlab_helper::{SUFFIX, original_program};
use walkdir::WalkDir;

use crate::error::StepRunnerError;

/// Path of the CA certificates in GitLab's helper images.
const CERTIFICATES: &str = "/ca-certs.pem";

/// Directory of git in GitLab's helper images, for build images without git.
const GIT: &str = "/git";

/// Copies this program to `file`, GitLab's helper program to `FILE.gitlab`, and CA certificates and git
/// to the same directory, if they exist.
pub fn run(file: &Path) -> Result<CliExit, StepRunnerError> {
    let exe = env::current_exe().with_path("find", Path::new("/proc/self/exe"))?;
    let sources = BootstrapSources {
        // The running executable, even if its path was replaced.
        program: Path::new("/proc/self/exe"),
        original: original_program(&exe),
        certificates: Path::new(CERTIFICATES),
        git: Path::new(GIT),
    };
    copy_all(&sources, file)?;
    Ok(CliExit::Done)
}

struct BootstrapSources<'a> {
    program: &'a Path,
    original: Option<PathBuf>,
    certificates: &'a Path,
    git: &'a Path,
}

fn copy_all(sources: &BootstrapSources, file: &Path) -> Result<(), PathError> {
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).with_path("make", dir)?;
    if let Some(original) = &sources.original {
        let mut name = OsString::from(file);
        name.push(SUFFIX);
        copy_file(original, Path::new(&name), 0o755)?;
    }
    if sources.certificates.exists() {
        copy_file(sources.certificates, &dir.join("ca-certs.pem"), 0o644)?;
    }
    if sources.git.exists() {
        copy_directory(sources.git, &dir.join("git"))?;
    }
    // The program last: once it exists, the other files do too.
    copy_file(sources.program, file, 0o755)
}

/// Replaces a file atomically: other processes see the old or the new file.
fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<(), PathError> {
    let source = open(from)?;
    replace(to, |scratch| {
        let mut target = create_private(scratch)?;
        io::copy(&mut &source, &mut target).with_path("write", scratch)?;
        target
            .set_permissions(Permissions::from_mode(mode))
            .with_path("change the mode of", scratch)
    })
}

/// Opens a regular file for reading, without waiting for the writer of a FIFO.
fn open(path: &Path) -> Result<File, PathError> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(path).with_path("open", path)?;
    if !file.metadata().with_path("inspect", path)?.is_file() {
        return Err(PathError::new("copy", path, io::Error::other("not a regular file")));
    }
    Ok(file)
}

/// Creates a file under a unique name, and renames it to `to`.
fn replace(to: &Path, make: impl FnOnce(&Path) -> Result<(), PathError>) -> Result<(), PathError> {
    let scratch = to.with_file_name(format!(".step-runner-{:016x}", random_u64()));
    let made = make(&scratch).and_then(|()| fs::rename(&scratch, to).with_path("replace", to));
    if made.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&scratch);
    }
    made
}

/// Copies a directory with its symlinks, hard links and modes, replacing existing entries.
fn copy_directory(from: &Path, to: &Path) -> Result<(), PathError> {
    // Git's programs are hard links to one file.
    let mut names: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut modes = Vec::new();
    for entry in WalkDir::new(from).follow_root_links(true) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(from).to_owned();
            let source = error.into_io_error().unwrap_or_else(|| io::Error::other("a loop"));
            PathError::new("read", &path, source)
        })?;
        let source = entry.path();
        let target = match source.strip_prefix(from) {
            Ok(rest) if !rest.as_os_str().is_empty() => to.join(rest),
            _ => to.to_owned(),
        };
        let meta = fs::symlink_metadata(source).with_path("inspect", source)?;
        if entry.file_type().is_dir() {
            match fs::create_dir(&target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_dir() => {
                    // An earlier copy may not be writable by its owner.
                    let mode = Permissions::from_mode(0o755);
                    fs::set_permissions(&target, mode).with_path("change the mode of", &target)?;
                }
                made => made.with_path("make", &target)?,
            }
            modes.push((target, meta.mode() & 0o7777));
        } else if meta.is_symlink() {
            let link = fs::read_link(source).with_path("read", source)?;
            replace(&target, |scratch| symlink(&link, scratch).with_path("make", scratch))?;
        } else {
            let known = names.get(&(meta.dev(), meta.ino()));
            let linked = known.is_some_and(|name| {
                replace(&target, |scratch| fs::hard_link(name, scratch).with_path("make", scratch))
                    .is_ok()
            });
            if !linked {
                copy_file(source, &target, meta.mode() & 0o7777)?;
                if meta.nlink() > 1 {
                    names.insert((meta.dev(), meta.ino()), target);
                }
            }
        }
    }
    // Children first: the mode of a parent may deny its owner access to them.
    for (dir, mode) in modes.into_iter().rev() {
        fs::set_permissions(&dir, Permissions::from_mode(mode))
            .with_path("change the mode of", &dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn file(path: &Path, content: &str, mode: u32) {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn existing_files_are_copied_beside_the_program_repeatedly() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        file(&at("program"), "program", 0o555);
        file(&at("certificates"), "certificates", 0o600);
        file(&at("helper.gitlab"), "original", 0o700);
        fs::create_dir_all(at("images-git/libexec")).unwrap();
        file(&at("images-git/libexec/git"), "git", 0o755);
        fs::hard_link(at("images-git/libexec/git"), at("images-git/libexec/git-add")).unwrap();
        symlink("libexec/git", at("images-git/git")).unwrap();
        symlink("/nowhere", at("images-git/dangling")).unwrap();
        fs::set_permissions(at("images-git/libexec"), Permissions::from_mode(0o555)).unwrap();
        let sources = BootstrapSources {
            program: &at("program"),
            original: Some(at("helper.gitlab")),
            certificates: &at("certificates"),
            git: &at("images-git"),
        };
        for content in ["program", "newer"] {
            file(&at("program"), content, 0o755);
            let target = at("new/opt/gitlab-runner-helper");
            copy_all(&sources, &target).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
            assert_eq!(mode(&target), 0o755);
            let opt = at("new/opt");
            assert_eq!(mode(&opt), 0o755);
            assert_eq!(mode(&opt.join("ca-certs.pem")), 0o644);
            let original = opt.join("gitlab-runner-helper.gitlab");
            assert_eq!(fs::read_to_string(&original).unwrap(), "original");
            assert_eq!(mode(&original), 0o755);
            let git = opt.join("git");
            assert_eq!(fs::read_link(git.join("git")).unwrap(), Path::new("libexec/git"));
            assert_eq!(fs::read_link(git.join("dangling")).unwrap(), Path::new("/nowhere"));
            assert_eq!(fs::read_to_string(git.join("git")).unwrap(), "git");
            assert_eq!(mode(&git.join("libexec/git")), 0o755);
            assert_eq!(fs::metadata(git.join("libexec/git-add")).unwrap().nlink(), 2);
            assert_eq!(mode(&git.join("libexec")), 0o555);
            let names: Vec<_> =
                fs::read_dir(&opt).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 4, "{names:?}");
        }
        // Ordinary users could not remove these directories.
        for dir in ["images-git/libexec", "new/opt/git/libexec"] {
            fs::set_permissions(at(dir), Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn missing_files_are_skipped_and_a_fifo_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        file(&at("program"), "program", 0o755);
        let (none, fifo) = (at("none"), at("fifo"));
        let mut sources = BootstrapSources {
            program: &at("program"),
            original: None,
            certificates: &none,
            git: &none,
        };
        copy_all(&sources, &at("a/program")).unwrap();
        assert_eq!(fs::read_dir(at("a")).unwrap().count(), 1);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        sources.certificates = &fifo;
        let error = copy_all(&sources, &at("b/program")).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot copy {}", fifo.display()));
        assert!(!at("b/program").exists());
    }
}
