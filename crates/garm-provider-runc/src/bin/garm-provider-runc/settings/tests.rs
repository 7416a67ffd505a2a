use std::collections::BTreeSet;

use garm_provider_runc::schema;
use oci_hooks_engine_cli::settings_file::parse;
use oci_hooks_files::error::chain;
use oci_hooks_testsupport::settings::{check_positions, check_secrecy};
use serde_json::Value;

use super::*;

const TEMPLATE: &str = GarmFileSettings::TEMPLATE;

#[test]
fn errors_give_line_and_column_without_quoting_values() {
    let mistake = |text: &str| {
        parse::<GarmFileSettings>(text.as_bytes(), Path::new("/s.toml"))
            .err()
            .map(|error| chain(&error))
    };
    check_positions(mistake);
    check_secrecy(mistake);
}

/// Settings with a value for each key that has no default.
const ALL: &str = r#"
[runtime]
path = "/opt/crun"
[store]
keep-age = "30d"
keep-size = "50GB"
[hooks]
dirs = ["/opt/hooks.d"]
[boot]
ca = "/etc/ca.pem"
[limits]
cpus = 8
memory = "32GiB"
pids = 65536
disk = "100GB"
[images."ubuntu 24"]
reference = "ghcr.io/team/runner:2"
runner-dir = "/home/runner"
user = "ci"
pull = "missing"
[flavors.small]
cpus = 0.5
memory = "2GiB"
disk = "1MB"
[networks.inner]
host-access = true
dns = ["10.0.0.53"]
pools = ["*"]
[mounts.certs]
source = "/etc/certs"
target = "/etc/certs"
read-only = false
pools = ["my set/1-x"]
always = true
[caches.cargo]
target = "/home/runner/.cargo"
pools = ["p"]
always = true
[registry."localhost:5000"]
insecure = true
mirrors = ["a"]
ca = "/etc/ca.pem"
"#;

fn all_settings() -> GarmFileSettings {
    toml::from_str(ALL).unwrap()
}

/// Returns the template with settings uncommented, and with the examples that `keep` accepts.
fn uncommented_template(keep: impl Fn(&str) -> bool) -> String {
    let is_setting = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let lines = TEMPLATE.lines().map(|line| match line.strip_prefix("# Example: ") {
        Some(example) if keep(example) => example,
        Some(_) => line,
        None => line.strip_prefix('#').filter(|rest| is_setting(rest)).unwrap_or(line),
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn template_changes_nothing_and_lists_all_defaults() {
    let defaults = GarmFileSettings::default();
    assert_eq!(toml::from_str::<GarmFileSettings>(TEMPLATE).unwrap(), defaults);
    let uncommented = uncommented_template(|_| false);
    assert_eq!(toml::from_str::<GarmFileSettings>(&uncommented).unwrap(), defaults);
    for line in defaults.to_toml().lines().filter(|line| !line.is_empty() && *line != "[limits]") {
        assert!(uncommented.contains(&format!("\n{line}\n")), "{line} is not in the template");
    }
}

#[test]
fn the_examples_of_the_template_can_be_used() {
    let settings: GarmFileSettings = toml::from_str(&uncommented_template(|_| true)).unwrap();
    assert_eq!(settings.images.len(), 1);
    // The examples of flavors, mounts and so on contain default values.
    let flavor = &settings.flavors["default"];
    let Flavor { privileged, nesting, no_new_privileges, .. } = Flavor::default();
    assert_eq!((flavor.privileged, flavor.nesting), (privileged, nesting));
    assert_eq!(flavor.no_new_privileges, no_new_privileges);
    assert!(settings.mounts["certificates"].read_only);
}

#[test]
fn template_contains_keys_without_a_default() {
    for line in all_settings().to_toml().lines().filter(|line| line.contains(" = ")) {
        let (key, _) = line.split_once(" = ").unwrap();
        let is_there = |start: &str| TEMPLATE.contains(&format!("\n{start}{key} = "));
        assert!(is_there("#") || is_there("# Example: "), "{key} is not in the template");
    }
}

#[test]
fn printed_settings_can_be_parsed() {
    assert_eq!(
        toml::from_str::<GarmFileSettings>(&all_settings().to_toml()).unwrap(),
        all_settings()
    );
}

#[test]
fn defaults_match_the_library() {
    let settings = GarmFileSettings::default().provider_settings().unwrap();
    assert_eq!(format!("{settings:?}"), format!("{:?}", ProviderSettings::default()));
}

#[test]
fn schema_has_exactly_the_keys_of_the_settings() {
    let schema: Value = serde_json::from_str(schema::CONFIG).unwrap();
    let settings = serde_json::to_value(all_settings()).unwrap();
    compare(&schema, &settings, "");
}

/// Compares the keys in a schema with those of a value that has all keys.
fn compare(schema: &Value, value: &Value, place: &str) {
    let Some(members) = value.as_object() else { return };
    assert_eq!(schema["type"], "object", "{place}");
    if let Some(of_all) = schema["additionalProperties"].as_object() {
        for (key, value) in members {
            compare(&Value::Object(of_all.clone()), value, &format!("{place}/{key}"));
        }
        return;
    }
    assert_eq!(schema["additionalProperties"], false, "{place}");
    let described: BTreeSet<_> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(described, members.keys().collect(), "{place}");
    for (key, value) in members {
        compare(&schema["properties"][key], value, &format!("{place}/{key}"));
    }
}

#[test]
fn schema_accepts_exactly_valid_settings() {
    let schema: Value = serde_json::from_str(schema::CONFIG).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap());
    let uncommented = uncommented_template(|_| true);
    for text in [ALL, &uncommented, &all_settings().to_toml(), ""] {
        let error = validator.iter_errors(&json(text).unwrap()).map(|e| e.to_string()).next();
        assert_eq!(error, None);
    }
    for text in [
        "[flavor.a]",
        "[flavors.a]\ncpu = 1",
        "[flavors.a]\ncpus = 0",
        "[flavors.a]\npids = 0",
        "[flavors.a]\npids = 1",
        "[limits]\nmemory = 4096",
        "[proxy]\nhttp = \"proxy:3128\"",
        "[mounts.a]\nsource = \"/a\"\ntarget = \"/\"",
        "[registry.\"https://r.test\"]",
        "[limits]\nmemory = \"4XB\"",
        "[boot]\ntimeout = \"7\"",
        "[boot]\nca = \"ca.pem\"",
        "[caches.a]\ntarget = \"/a/../b\"",
        "[caches.a]",
        "[mounts.a]\nsource = \"/a\"",
        "[images.a]",
        "[images.a]\nreference = \"a\"\npull = \"sometimes\"",
        "[store]\npull = \"sometimes\"",
    ] {
        toml::from_str::<GarmFileSettings>(text).unwrap_err();
        assert!(!validator.is_valid(&json(text).unwrap()), "{text}");
    }
}

#[test]
fn proxies_come_from_garm_or_else_the_settings() {
    let settings: GarmFileSettings =
        toml::from_str("[proxy]\nhttps = \"http://p\"\nno-proxy = \"a\"").unwrap();
    assert_eq!(settings.proxy("https_proxy", None).as_deref(), Some("http://p"));
    assert_eq!(settings.proxy("no_proxy", Some(String::new())).as_deref(), Some("a"));
    assert_eq!(settings.proxy("https_proxy", Some("x".to_owned())).as_deref(), Some("x"));
    assert_eq!(settings.proxy("HTTPS_PROXY", None), None);
}
