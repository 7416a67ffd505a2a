//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --bin oci-hooks man` writes them anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::lint::{self, Level, LintOptions, Rule, Severity};
use oci_hooks::hooks::{Definition, PathCheck, SchemaOptions};
use oci_hooks::program::testing::pages::{Pages, man};
use serde_json::Value;

use crate::cli::Cli;

const DESCRIPTION: &str = include_str!("../../../man/parts/description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/reference.roff");

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-hooks\\-dir\\fR, \\fB\\-\\-as\\fR, \\fB\\-\\-format\\fR, \\fB\\-\\-error\\-format\\fR, \
\\fB\\-\\-color\\fR and \\fB\\-\\-verbose\\fR are described in
.BR oci\\-hooks (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks (1),
.BR oci\\-hooks\\-json (5)
";

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = Pages {
        program: "oci-hooks",
        manual: "OCI hooks",
        description: DESCRIPTION,
        reference: REFERENCE,
        global_options: GLOBAL_OPTIONS,
        see_also: SEE_ALSO,
    };
    let others = ["oci-hooks-runtime", "oci-hooks-nri"];
    let is_own = |name: &str| {
        name.starts_with("oci-hooks") && !others.iter().any(|other| name.starts_with(other))
    };
    pages.check(Cli::command(), is_own);
}

#[test]
fn every_key_of_the_json_output_is_described() {
    let mut keys = BTreeSet::new();
    for file in [
        "cli/list.json",
        "cli/explain.json",
        "cli/validate.json",
        "cli/disable.json",
        "cli/migrate-any.json",
        "cli/pattern.json",
        "lint/output/findings.json",
        "lint/output/explain.json",
    ] {
        let text =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file))
                .unwrap();
        collect_keys(&serde_json::from_str(&text).unwrap(), &mut keys);
    }
    let is_described = |key: &String| REFERENCE.contains(&format!("\\fB{key}\\fR"));
    let missing: Vec<_> = keys.iter().filter(|key| !is_described(key)).collect();
    assert!(missing.is_empty(), "not in man/parts/reference.roff: {missing:?}");
}

#[test]
fn examples_of_hook_files_have_no_mistakes() {
    let page = fs::read_to_string(man("oci-hooks-json.5")).unwrap();
    let examples = page.split(".nf\n").skip(1).map(|rest| rest.split_once(".fi").unwrap().0);
    let mut options = LintOptions::for_consumer(&PODMAN);
    // The one that disables a hook means it; the old format is there to be told about.
    for rule in ["always-false", "old-schema"] {
        options.levels.set(Rule::find(rule).unwrap(), Level::Allow);
    }
    let mut count = 0;
    for example in examples {
        let text = example.replace("\\(dq", "\"").replace("\\(ha", "^");
        let text = text.replace("\\-", "-").replace("\\e", "\\");
        let schema = SchemaOptions::default().with_path_check(PathCheck::Skip);
        Definition::parse(text.as_bytes(), schema).unwrap_or_else(|e| panic!("{e:?}: {text}"));
        let findings = lint::lint_text(Path::new("example.json"), text.as_bytes(), &options);
        let bad: Vec<_> = findings.iter().filter(|f| f.severity > Severity::Note).collect();
        assert!(bad.is_empty(), "{bad:?}: {text}");
        count += 1;
    }
    assert!(count >= 5);
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        Value::Object(members) => {
            for (key, value) in members {
                keys.insert(key.clone());
                // Its keys are the user's.
                if key != "annotations" {
                    collect_keys(value, keys);
                }
            }
        }
        _ => {}
    }
}
