//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --features container-hook --bin container-hook man` writes them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use oci_hooks::container_hook::JOB_VARIABLES;
use oci_hooks::container_hook::engine::pod::{FIELDS, Field, Treatment};
use oci_hooks::program::host::PROXY_VARIABLES;
use oci_hooks::program::testing::pages::{Pages, man};
use serde_json::Value;

use crate::cli::Cli;
use crate::settings::{FILE, FILE_VARIABLE};
use crate::{docker, environment};

const DESCRIPTION: &str = include_str!("../../../man/parts/container-hook-description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/container-hook-reference.roff");

const TEMPLATES: &str = include_str!("../../../man/parts/container-hook-template.roff");

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-config\\fR, \\fB\\-\\-format\\fR and \\fB\\-\\-color\\fR are described in
.BR container\\-hook (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR container\\-hook (1)
";

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = Pages {
        program: "container-hook",
        manual: "Container hooks",
        description: DESCRIPTION,
        reference: REFERENCE,
        global_options: GLOBAL_OPTIONS,
        see_also: SEE_ALSO,
    };
    pages.check(Cli::command(), |name| name.starts_with("container-hook"));
}

#[test]
fn the_page_of_templates_has_every_field() {
    let pages = TEMPLATES.replace(".\\\" FIELDS\n", &fields());
    let path = man("container-hook-template.5");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &pages).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(found == pages, "{} is stale; UPDATE_GOLDEN=1 rewrites it", path.display());
}

/// Returns all fields of a pod with what becomes of them, in roff.
fn fields() -> String {
    let (mut applied, mut plain) = (String::new(), Vec::new());
    let mut meaningless: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut refused: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Field { path, treatment } in FIELDS {
        match treatment {
            Treatment::Applied("") => plain.push(*path),
            Treatment::Applied(how) => applied += &format!(".TP\n.B {path}\n{how}\n"),
            Treatment::Meaningless(why) => meaningless.entry(why).or_default().push(path),
            Treatment::Refused(why) => refused.entry(why).or_default().push(path),
        }
    }
    let list = |paths: &[&str]| format!("\\fB{}\\fR\n", paths.join("\\fR, \\fB"));
    let by_reason = |all: BTreeMap<&str, Vec<&str>>| {
        let lines = all.into_iter().map(|(why, paths)| format!(".TP\n{why}\n{}", list(&paths)));
        lines.collect::<String>()
    };
    format!(
        ".SS Applied\n.TP\nas on Kubernetes\n{}{applied}\
         .SS \"Without meaning on one host, by reason\"\n{}\
         .SS \"Refused, by reason\"\n{}",
        list(&plain),
        by_reason(meaningless),
        by_reason(refused)
    )
    .replace('-', "\\-")
}

#[test]
fn every_key_of_the_json_output_is_described() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/container-hook/cli");
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
    assert!(missing.is_empty(), "not in man/parts/container-hook-reference.roff: {missing:?}");
}

#[test]
fn files_and_variables_are_described() {
    let page = fs::read_to_string(man("container-hook.1")).unwrap().replace("\\-", "-");
    let job = JOB_VARIABLES.iter().map(|(name, _)| *name);
    let runner =
        environment::RUNNER_VARIABLES.into_iter().chain(docker::VARIABLES).chain(docker::OF_DOCKER);
    for name in runner.chain(PROXY_VARIABLES).chain(job).chain([FILE, FILE_VARIABLE]) {
        assert!(page.contains(name), "{name}");
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
