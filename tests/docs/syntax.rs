//! Blocks that are documents of their own: settings, JSON, YAML.

use std::io::Write as _;
use std::process::Command;

use crate::page::{Block, Directive};

/// Checks that a block can be read as what it says it is, and by the program whose settings it is.
pub(crate) fn check(block: &Block) -> Result<(), String> {
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
        Directive::Settings(program) => settings(program, text),
        _ => Ok(()),
    }
}

fn settings(program: &str, text: &str) -> Result<(), String> {
    let program = match program {
        "container-hook" => env!("CARGO_BIN_EXE_container-hook"),
        _ => env!("CARGO_BIN_EXE_garm-provider-runc"),
    };
    let mut file = tempfile::NamedTempFile::new().expect("there is room");
    file.write_all(text.as_bytes()).expect("there is room");
    let output = Command::new(program)
        .args(["config", "--config"])
        .arg(file.path())
        .output()
        .expect("the program can be run");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
