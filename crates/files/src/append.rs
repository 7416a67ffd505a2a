//! Files to which several processes append lines at once: each line is written completely or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::process::geteuid;

use super::fs::{PathContext as _, PathError, writers};
use super::lock::{LOCK_TIMEOUT, lock_open};

/// A file opened for appending lines, owned and writable by this user only.
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    path: PathBuf,
}

impl AppendFile {
    /// Opens a file; creates it with mode 0600, and its parent directories, if they are missing.
    ///
    /// # Errors
    ///
    /// Fails if the path is a symbolic link or no regular file, or if other users own the file or can write to it.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_path("create the directory", parent)?;
        }
        let flags = OFlags::APPEND | OFlags::CREATE | OFlags::WRONLY;
        // Opening a FIFO must not block, and a terminal must not become the controlling one.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).with_path("open", path)?;
        let file = File::from(file);
        let stat = fstat(&file).with_path("inspect", path)?;
        let refuse = |problem: &str| Err(PathError::new("use", path, io::Error::other(problem)));
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return refuse("it is not a regular file");
        }
        if stat.st_uid != geteuid().as_raw() {
            return refuse(&format!("it belongs to user {}", stat.st_uid));
        }
        let writers =
            writers(file.as_fd(), &stat).with_path("read the access control list of", path)?;
        if let Some(writer) = writers.first() {
            return refuse(&format!(
                "{} can write to it: remove this permission with `chmod go-w`",
                writer.who
            ));
        }
        Ok(AppendFile { file, path: path.to_owned() })
    }

    /// Appends lines, or none of them on an error.
    pub fn append(&self, lines: &[u8]) -> Result<(), PathError> {
        self.append_within(lines, LOCK_TIMEOUT)
    }

    fn append_within(&self, lines: &[u8], patience: Duration) -> Result<(), PathError> {
        lock_open(&self.file, &self.path, patience)?;
        let written = self.write(lines);
        let unlocked = self.file.unlock().with_path("unlock", &self.path);
        written.with_path("write", &self.path).and(unlocked)
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        let before = self.file.metadata()?.len();
        (&self.file).write_all(lines).inspect_err(|_| {
            // Half a line would corrupt the next one. An error here is ignored: the first one is returned.
            let _ = self.file.set_len(before);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn concurrently_appended_lines_stay_intact() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        std::thread::scope(|scope| {
            for letter in ["a", "b", "c"] {
                let path = &path;
                scope.spawn(move || {
                    let line = letter.repeat(5000) + "\n";
                    for _ in 0..50 {
                        AppendFile::open(path).unwrap().append(line.as_bytes()).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 150);
        for line in text.lines() {
            assert_eq!(line, line[..1].repeat(5000));
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn process_that_holds_the_lock_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = AppendFile::open(&path).unwrap();
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        let error = file.append_within(b"a\n", Duration::ZERO).unwrap_err().source.to_string();
        assert!(error.starts_with(&format!("process {} (", std::process::id())), "{error}");
        other.unlock().unwrap();
        file.append(b"b\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b\n");
    }

    #[test]
    fn only_the_users_own_file_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        AppendFile::open(&file).unwrap();
        symlink(&file, &link).unwrap();
        AppendFile::open(&link).unwrap_err();
        AppendFile::open(Path::new("/dev/full")).unwrap_err();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        let error = AppendFile::open(&file).unwrap_err();
        assert!(error.source.to_string().contains("chmod go-w"), "{error:?}");
    }
}
