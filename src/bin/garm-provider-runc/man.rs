//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --features garm --bin garm-provider-runc man` writes them anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use oci_hooks::garm::schema;
use oci_hooks::program::host::PROXY_VARIABLES;
use oci_hooks::program::testing::pages::{Pages, man};
use serde_json::Value;

use crate::cli::Cli;
use crate::settings::{FILE, FILE_VARIABLE};

const DESCRIPTION: &str = include_str!("../../../man/parts/garm-provider-runc-description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/garm-provider-runc-reference.roff");

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-config\\fR, \\fB\\-\\-format\\fR and \\fB\\-\\-color\\fR are described in
.BR garm\\-provider\\-runc (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR garm\\-provider\\-runc (1)
";

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = Pages {
        program: "garm-provider-runc",
        manual: "GARM's provider",
        description: DESCRIPTION,
        reference: REFERENCE,
        global_options: GLOBAL_OPTIONS,
        see_also: SEE_ALSO,
    };
    pages.check(Cli::command(), |name| name.starts_with("garm-provider-runc"));
}

#[test]
fn every_key_of_the_json_output_is_described() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/garm-provider-runc/cli");
    let mut keys = BTreeSet::new();
    for entry in fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        // The keys of the settings are explained in the file that `config --default` prints.
        if path.extension().is_some_and(|end| end == "json") && !path.ends_with("config.json") {
            let text = fs::read_to_string(path).unwrap();
            collect_keys(&serde_json::from_str(&text).unwrap(), &mut keys);
        }
    }
    let is_described = |key: &&String| REFERENCE.contains(&format!("\\fB{key}\\fR"));
    let missing: Vec<_> = keys.iter().filter(|key| !is_described(key)).collect();
    assert!(!keys.is_empty());
    assert!(missing.is_empty(), "not in man/parts/garm-provider-runc-reference.roff: {missing:?}");
}

#[test]
fn files_variables_and_extra_specs_are_described() {
    let page = fs::read_to_string(man("garm-provider-runc.1")).unwrap().replace("\\-", "-");
    for name in PROXY_VARIABLES.into_iter().chain([FILE, FILE_VARIABLE]) {
        assert!(page.contains(name), "{name}");
    }
    let schema: Value = serde_json::from_str(schema::EXTRA_SPECS).unwrap();
    let (_, described) = page.split_once("EXTRA SPECS").unwrap();
    for key in schema["properties"].as_object().unwrap().keys() {
        assert!(described.contains(key.as_str()), "{key}");
    }
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        Value::Object(members) => {
            for (key, value) in members {
                keys.insert(key.clone());
                collect_keys(value, keys);
            }
        }
        _ => {}
    }
}
