//! Unpacking of a downloaded runner to a layer.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{LayerLimits, UnpackTarget, unpack_archive};

use super::download::RunnerDownload;
use super::error::RunnerError;
use super::locate::GITEA_NAMES;
use crate::boot::Forge;

/// Home directory of the user in the layer.
pub const HOME: &str = "home/runner";

/// First bytes of programs and scripts.
const PROGRAMS: [&[u8]; 2] = [b"\x7fELF", b"#!"];

/// Inputs for unpacking a runner to a layer.
pub struct RunnerUnpacking<'a> {
    pub forge: Forge,
    pub owner: (u32, u32),
    pub limits: &'a LayerLimits,
    /// Directory of the layer, which is created.
    pub tree: &'a Path,
}

/// Returns the directory of a forge's runner below the home directory, and its program in there.
pub fn names(forge: Forge) -> (&'static str, &'static str) {
    match forge {
        Forge::Github => ("actions-runner", "run.sh"),
        Forge::Gitea => ("act_runner", "act_runner"),
    }
}

impl RunnerUnpacking<'_> {
    /// Creates the layer from a download. Returns its approximate size on disk.
    pub fn run(&self, mut download: RunnerDownload<'_>) -> Result<u64, RunnerError> {
        let (name, program) = names(self.forge);
        let home = self.make_home()?;
        let dir = home.join(name);
        let made = match self.forge {
            Forge::Github => self.archive(&mut download, &[], &dir),
            Forge::Gitea => self.program_or_archive(&mut download, &dir, program),
        };
        let url = download.url();
        // An incomplete download or a wrong digest is reported first, because it explains other errors.
        download.finish()?;
        let size_bytes = made?;
        let is_program = fs::symlink_metadata(dir.join(program))
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o100 != 0);
        if !is_program {
            return Err(RunnerError::NotARunner { url, missing: program });
        }
        Ok(size_bytes)
    }

    /// Creates the home directory and its parents.
    fn make_home(&self) -> Result<PathBuf, RunnerError> {
        let home = self.tree.join(HOME);
        let mut dir = self.tree.to_owned();
        for name in ["", "home", "runner"] {
            dir.push(name);
            DirBuilder::new().create(&dir).with_path("create the directory", &dir)?;
            // In instances, the modes of these directories override those of the image.
            fs::set_permissions(&dir, Permissions::from_mode(0o755))
                .with_path("change the mode of", &dir)?;
        }
        if let Some((uid, gid)) = self.owner() {
            chown(&home, Some(uid), Some(gid)).with_path("change the owner of", &home)?;
        }
        Ok(home)
    }

    /// Returns the owner of the files, if this process can set it.
    fn owner(&self) -> Option<(u32, u32)> {
        rustix::process::geteuid().is_root().then_some(self.owner)
    }

    /// Unpacks an archive, whose first bytes have already been read.
    fn archive(
        &self,
        download: &mut RunnerDownload<'_>,
        first: &[u8],
        dir: &Path,
    ) -> Result<u64, RunnerError> {
        let url = download.url();
        let target = UnpackTarget { tree: dir, privilege: Privilege::Root.limit_to_own() };
        unpack_archive(Cursor::new(first).chain(download), self.owner, self.limits, target)
            .map_err(|source| RunnerError::Unpack { url, source })
    }

    fn program_or_archive(
        &self,
        download: &mut RunnerDownload<'_>,
        dir: &Path,
        name: &'static str,
    ) -> Result<u64, RunnerError> {
        let mut first = Vec::new();
        let read = download.take(PROGRAMS[0].len() as u64).read_to_end(&mut first);
        read.with_path("download", dir)?;
        if !PROGRAMS.iter().any(|magic| first.starts_with(magic)) {
            let size_bytes = self.archive(download, &first, dir)?;
            rename_program(dir, name)?;
            return Ok(size_bytes);
        }
        DirBuilder::new().mode(0o755).create(dir).with_path("create the directory", dir)?;
        let path = dir.join(name);
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).open(&path).with_path("create", &path)?;
        io::copy(&mut Cursor::new(first).chain(download), &mut file).with_path("write", &path)?;
        self.finish_program(&file, dir).with_path("change owner and mode of", &path)?;
        Ok(file.metadata().with_path("inspect", &path)?.len())
    }

    fn finish_program(&self, file: &File, dir: &Path) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner() {
            fchown(file, Some(uid), Some(gid))?;
            chown(dir, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(0o755))
    }
}

/// Renames the program in a directory to its name without version. The caller checks that the program exists.
fn rename_program(dir: &Path, name: &str) -> Result<(), RunnerError> {
    for entry in fs::read_dir(dir).with_path("list", dir)? {
        let entry = entry.with_path("list", dir)?;
        let found = entry.file_name();
        let is_program = found
            .to_str()
            .is_some_and(|found| GITEA_NAMES.iter().any(|start| found.starts_with(start)));
        if is_program && entry.file_type().with_path("inspect", &entry.path())?.is_file() {
            return Ok(fs::rename(entry.path(), dir.join(name)).with_path("rename", &entry.path())?);
        }
    }
    Ok(())
}
