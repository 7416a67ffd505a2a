//! Records on disk, which later calls of this or of another version of the program read.
//!
//! Each record contains the version of its format. Unknown fields are ignored and fields that may be missing are
//! optional, so that an older and a newer program finish each other's jobs. If the meaning of a field changes, the
//! version increases: an older program rejects such a record, and leaves it alone.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The format version of the records that this program writes. Records without a version are read as well.
pub const VERSION: u32 = 1;

/// Treatment of records of a newer version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewerRecords {
    #[default]
    Keep,
    /// Remove the records together with the objects they describe, unless those are running.
    Remove,
}

/// Errors of decoding a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The record has a version that this program does not know.
    #[error(
        "{} was written by a newer version of this program (records of version {version}, this one reads \
         {VERSION}): finish or prune it with that version, or remove it with `prune --newer`",
        path.display()
    )]
    Newer { path: PathBuf, version: u32 },
    /// The file is no JSON, or the record's fields are missing or of another type.
    #[error("{} is damaged, or was written by another version of this program", path.display())]
    Invalid { path: PathBuf, source: serde_json::Error },
}

impl RecordError {
    /// Returns whether a newer version of this program wrote the record.
    pub fn is_newer(&self) -> bool {
        matches!(self, RecordError::Newer { .. })
    }

    /// Returns whether another version of this program may have written the record: it is valid JSON, but
    /// has other fields than expected.
    pub fn is_of_other_version(&self) -> bool {
        match self {
            RecordError::Newer { .. } => true,
            RecordError::Invalid { source, .. } => source.is_data(),
        }
    }
}

#[derive(Serialize)]
struct VersionedRecord<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

/// The format version of a record, which is read before the other fields.
#[derive(Deserialize)]
struct RecordHeader {
    version: Option<u32>,
}

/// Returns a record as JSON, with its version.
///
/// # Panics
///
/// Panics if the value does not serialize to a JSON object.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(&VersionedRecord { version: VERSION, record }).expect("records are objects")
}

/// Reads a record; the path is for the error.
pub fn decode<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, RecordError> {
    let invalid = |source| RecordError::Invalid { path: path.to_owned(), source };
    match serde_json::from_slice::<RecordHeader>(text).map_err(invalid)?.version {
        Some(version) if version > VERSION => {
            Err(RecordError::Newer { path: path.to_owned(), version })
        }
        _ => serde_json::from_slice(text).map_err(invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct ExampleRecord {
        name: String,
    }

    fn read(text: &str) -> Result<ExampleRecord, RecordError> {
        decode(Path::new("/run/record.json"), text.as_bytes())
    }

    #[test]
    fn record_contains_its_version() {
        let record = ExampleRecord { name: "a".into() };
        let text = String::from_utf8(encode(&record)).unwrap();
        assert_eq!(text, r#"{"version":1,"name":"a"}"#);
        assert_eq!(read(&text).unwrap(), record);
    }

    #[test]
    fn files_without_a_version_and_with_more_fields_are_read() {
        for text in [r#"{"name":"a"}"#, r#"{"version":1,"name":"a","later":{"x":[1]}}"#] {
            assert_eq!(read(text).unwrap().name, "a");
        }
    }

    #[test]
    fn newer_record_is_rejected_with_a_hint() {
        let error = read(r#"{"version":2,"name":"a"}"#).unwrap_err();
        assert!(error.is_newer() && error.is_of_other_version());
        let text = error.to_string();
        assert!(text.starts_with("/run/record.json was written by a newer version"), "{text}");
        assert!(text.contains("version 2") && text.ends_with("`prune --newer`"), "{text}");
    }

    #[test]
    fn corrupt_record_is_not_taken_for_another_version() {
        for (text, is_whole) in [
            ("", false),
            (r#"{"name":"#, false),
            (r#"{"version":"x"}"#, true),
            (r#"{"version":-1}"#, true),
            (r#"{"title":"a"}"#, true),
            ("[]", true),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(
                (error.is_newer(), error.is_of_other_version()),
                (false, is_whole),
                "{text}"
            );
        }
    }
}
