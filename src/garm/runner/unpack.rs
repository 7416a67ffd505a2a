//! From what is downloaded to the files of a layer.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, fchown};
use std::path::{Path, PathBuf};

use super::download::Download;
use super::error::RunnerError;
use crate::garm::boot::Forge;
use crate::image::{Limits, Target, unpack_archive};
use crate::sys::fs::PathContext as _;
use crate::sys::privilege::Privilege;

/// The user's directory in the layer.
pub const HOME: &str = "home/runner";

/// The first bytes of programs and scripts.
const PROGRAMS: [&[u8]; 2] = [b"\x7fELF", b"#!"];

/// What the names of Gitea's program start with, followed by its version.
const GITEA_NAMES: [&str; 2] = ["act_runner", "gitea-runner"];

/// A layer to be made of a runner.
pub struct Unpacking<'a> {
    pub forge: Forge,
    pub owner: (u32, u32),
    pub limits: &'a Limits,
    /// The directory of the layer, which is made.
    pub tree: &'a Path,
}

/// Returns what a forge's runner is in, below the user's directory, and what is executed there.
pub fn names(forge: Forge) -> (&'static str, &'static str) {
    match forge {
        Forge::Github => ("actions-runner", "run.sh"),
        Forge::Gitea => ("act_runner", "act_runner"),
    }
}

impl Unpacking<'_> {
    /// Makes the layer of a download. Returns about how much of the disk it takes.
    pub fn run(&self, mut download: Download<'_>) -> Result<u64, RunnerError> {
        let (name, program) = names(self.forge);
        let home = self.make_home()?;
        let dir = home.join(name);
        let made = match self.forge {
            Forge::Github => self.archive(&mut download, &[], &dir),
            Forge::Gitea => self.program_or_archive(&mut download, &dir, program),
        };
        let url = download.url();
        // If it is not what it should be, that explains what else is wrong.
        download.finish()?;
        let size_bytes = made?;
        let is_program = fs::symlink_metadata(dir.join(program))
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o100 != 0);
        if !is_program {
            return Err(RunnerError::NotARunner { url, missing: program });
        }
        Ok(size_bytes)
    }

    /// Makes the directory that the user's is in, and that.
    fn make_home(&self) -> Result<PathBuf, RunnerError> {
        let home = self.tree.join(HOME);
        let mut dir = self.tree.to_owned();
        for name in ["", "home", "runner"] {
            dir.push(name);
            DirBuilder::new().create(&dir).at("make the directory", &dir)?;
            // Instances see these, not those of the image.
            fs::set_permissions(&dir, Permissions::from_mode(0o755)).at("change", &dir)?;
        }
        if let Some((uid, gid)) = self.owner() {
            chown(&home, Some(uid), Some(gid)).at("change the owner of", &home)?;
        }
        Ok(home)
    }

    /// Returns whose the files are to be, if that can be.
    fn owner(&self) -> Option<(u32, u32)> {
        rustix::process::geteuid().is_root().then_some(self.owner)
    }

    /// Unpacks an archive, whose first bytes were read already.
    fn archive(
        &self,
        download: &mut Download<'_>,
        first: &[u8],
        dir: &Path,
    ) -> Result<u64, RunnerError> {
        let url = download.url();
        let target = Target { tree: dir, privilege: Privilege::Root.at_most_own() };
        unpack_archive(Cursor::new(first).chain(download), self.owner, self.limits, target)
            .map_err(|source| RunnerError::Unpack { url, source })
    }

    fn program_or_archive(
        &self,
        download: &mut Download<'_>,
        dir: &Path,
        name: &'static str,
    ) -> Result<u64, RunnerError> {
        let mut first = Vec::new();
        let read = download.take(PROGRAMS[0].len() as u64).read_to_end(&mut first);
        read.at("download", dir)?;
        if !PROGRAMS.iter().any(|magic| first.starts_with(magic)) {
            let size_bytes = self.archive(download, &first, dir)?;
            rename_program(dir, name)?;
            return Ok(size_bytes);
        }
        DirBuilder::new().mode(0o755).create(dir).at("make the directory", dir)?;
        let path = dir.join(name);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path).at("make", &path)?;
        io::copy(&mut Cursor::new(first).chain(download), &mut file).at("write", &path)?;
        self.finish_program(&file, dir).at("change", &path)?;
        Ok(file.metadata().at("look at", &path)?.len())
    }

    fn finish_program(&self, file: &File, dir: &Path) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner() {
            fchown(file, Some(uid), Some(gid))?;
            chown(dir, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(0o755))
    }
}

/// Gives the program in a directory the name without its version. If there is none, that is found
/// out later.
fn rename_program(dir: &Path, name: &str) -> Result<(), RunnerError> {
    for entry in fs::read_dir(dir).at("list", dir)? {
        let entry = entry.at("list", dir)?;
        let found = entry.file_name();
        let is_program = found
            .to_str()
            .is_some_and(|found| GITEA_NAMES.iter().any(|start| found.starts_with(start)));
        if is_program && entry.file_type().at("look at", &entry.path())?.is_file() {
            return Ok(fs::rename(entry.path(), dir.join(name)).at("rename", &entry.path())?);
        }
    }
    Ok(())
}
