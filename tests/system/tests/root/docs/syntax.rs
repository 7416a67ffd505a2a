//! Blocks that are whole documents: settings, JSON, YAML.

use std::io::Write as _;
use std::process::Command;

use crate::docs::page::{BlockDirective, PageBlock};

/// Checks that a block parses in its language, and as settings of its program.
pub(crate) fn check(block: &PageBlock) -> Result<(), String> {
    let text = &block.text;
    match block.language.as_str() {
        "toml" => {
            toml::from_str::<toml::Table>(text).map_err(|error| error.to_string())?;
        }
        "json" => {
            for value in serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>() {
                value.map_err(|error| error.to_string())?;
            }
        }
        "yaml" => {
            for event in saphyr_parser::Parser::new_from_str(text) {
                event.map_err(|error| error.to_string())?;
            }
        }
        _ => {}
    }
    match &block.directive {
        BlockDirective::Settings(program) => settings(program, text),
        _ => Ok(()),
    }
}

fn settings(program: &str, text: &str) -> Result<(), String> {
    let mut file = tempfile::NamedTempFile::new().expect("there is room");
    file.write_all(text.as_bytes()).expect("there is room");
    let output = Command::new(oci_hooks_testsupport::program::built_program(program))
        .args(["config", "--config"])
        .arg(file.path())
        .output()
        .expect("the program can be run");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
