//! Settings files with mistakes, which any program rejects without quoting what they hold.

use std::path::Path;

use super::super::settings_file::{FileSettings, parse};
use crate::sys::error::chain;

/// Checks that messages name file, line and column, and what was expected.
#[track_caller]
pub fn check_positions<S: FileSettings>() {
    for (text, expected) in [
        ("[runtime]\nordr = []\n", "2:1: unknown field, expected one of `order`"),
        ("[log]\nsize = \"20XB\"\n", "2:8: invalid size: expected 20GB"),
        ("[store]\npull = \"sometimes\"\n", "2:8: unknown variant, expected one of `always`"),
        ("[network]\ndns = [\"1.1.1.1\", \"x\"]\n", "2:19: invalid IP address syntax"),
        ("[store\n", "1:7: unclosed table"),
        ("\"\u{fc}\" = 1", "1:1: unknown field, expected one of"),
    ] {
        let message = message::<S>(text);
        assert!(message.starts_with(&format!("/s.toml:{expected}")), "{message}");
    }
}

/// Checks that messages do not quote the file: who sees them may not be who may read it.
#[track_caller]
pub fn check_secrecy<S: FileSettings>() {
    let shadow = "root:$y$s3cret:20000:0:99999:7:::\ns3cret:*:20000:0:99999:7:::\n";
    for text in [
        shadow,
        "s3cret",
        "s3cret = 1",
        "[s3cret]",
        "s3cret = {",
        "[store]\npull = \"s3cret\"",
        "[store]\nroot = [\"s3cret\"]",
        "[store]\nmax-layer-size = \"s3cret\"",
        "[store]\nmax-layer-files = \"s3cret\"",
        "[store]\nkeep-age = \"s3cret\"",
        "[store]\ns3cret = 1",
        "[network]\npool = \"s3cret\"",
        "[network]\ndns = [\"s3cret\"]",
        "[network]\ndns = \"s3cret\"",
        "[runtime]\norder = \"s3cret\"",
        "[runtime]\norder = [\"s3cret\", 7]",
        "[registry.\"s3cret\"]\ninsecure = \"s3cret\"",
        "runtime = \"s3cret\"",
    ] {
        let message = message::<S>(text);
        assert!(!message.contains("s3cret"), "{message}");
        assert!(message.starts_with("/s.toml:"), "{message}");
    }
}

#[track_caller]
fn message<S: FileSettings>(text: &str) -> String {
    match parse::<S>(text.as_bytes(), Path::new("/s.toml")) {
        Ok(_) => panic!("no mistake was found in {text:?}"),
        Err(error) => chain(&error),
    }
}
