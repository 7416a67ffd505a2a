//! Corrupt records.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use rustix::fs::{CWD, Mode, mkfifoat};

/// A way to corrupt a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordDamage {
    Empty,
    CutOff,
    NotText,
    OtherVersion,
    Directory,
    Fifo,
    Link,
}

impl RecordDamage {
    pub const ALL: [RecordDamage; 7] = [
        RecordDamage::Empty,
        RecordDamage::CutOff,
        RecordDamage::NotText,
        RecordDamage::OtherVersion,
        RecordDamage::Directory,
        RecordDamage::Fifo,
        RecordDamage::Link,
    ];

    /// Corrupts the record at a path.
    #[track_caller]
    pub fn inflict(self, path: &Path) {
        let text = fs::read(path).expect("the record is there before");
        fs::remove_file(path).expect("it is a file");
        let done = match self {
            RecordDamage::Empty => fs::write(path, ""),
            RecordDamage::CutOff => fs::write(path, &text[..text.len() / 2]),
            RecordDamage::NotText => fs::write(path, b"\xff\0\xfe"),
            RecordDamage::OtherVersion => fs::write(path, r#"{"version": 9}"#),
            RecordDamage::Directory => fs::create_dir_all(path.join("something/in it")),
            RecordDamage::Fifo => {
                mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)
            }
            // To itself: opening it fails.
            RecordDamage::Link => symlink(path, path),
        };
        done.expect("the directory can be written to");
    }
}
