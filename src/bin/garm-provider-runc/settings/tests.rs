use std::collections::BTreeSet;

use oci_hooks::garm::schema;
use oci_hooks::program::testing::settings::{check_positions, check_secrecy};
use serde_json::Value;

use super::*;

const TEMPLATE: &str = Settings::TEMPLATE;

#[test]
fn mistakes_name_line_and_column_and_quote_nothing() {
    check_positions::<Settings>();
    check_secrecy::<Settings>();
}

/// A value for each key that has no default.
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
disk = 1000000
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

fn all() -> Settings {
    toml::from_str(ALL).unwrap()
}

/// The template with what is commented out put into force, and of the examples what `keep` accepts.
fn uncommented(keep: impl Fn(&str) -> bool) -> String {
    let is_setting = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let lines = TEMPLATE.lines().map(|line| match line.strip_prefix("# Example: ") {
        Some(example) if keep(example) => example,
        Some(_) => line,
        None => line.strip_prefix('#').filter(|rest| is_setting(rest)).unwrap_or(line),
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_template_changes_nothing_and_says_all_defaults() {
    let defaults = Settings::default();
    assert_eq!(toml::from_str::<Settings>(TEMPLATE).unwrap(), defaults);
    let uncommented = uncommented(|_| false);
    assert_eq!(toml::from_str::<Settings>(&uncommented).unwrap(), defaults);
    for line in defaults.to_toml().lines().filter(|line| !line.is_empty() && *line != "[limits]") {
        assert!(uncommented.contains(&format!("\n{line}\n")), "{line} is not in the template");
    }
}

#[test]
fn the_examples_of_the_template_can_be_used() {
    let settings: Settings = toml::from_str(&uncommented(|_| true)).unwrap();
    assert_eq!(settings.images.len(), 1);
    // Flavors, mounts and so on show their defaults where those are not to be seen otherwise.
    let flavor = &settings.flavors["default"];
    let Flavor { privileged, nesting, no_new_privileges, .. } = Flavor::default();
    assert_eq!((flavor.privileged, flavor.nesting), (privileged, nesting));
    assert_eq!(flavor.no_new_privileges, no_new_privileges);
    assert!(settings.mounts["certificates"].read_only);
}

#[test]
fn keys_without_a_default_are_in_the_template() {
    for line in all().to_toml().lines().filter(|line| line.contains(" = ")) {
        let (key, _) = line.split_once(" = ").unwrap();
        let is_there = |start: &str| TEMPLATE.contains(&format!("\n{start}{key} = "));
        assert!(is_there("#") || is_there("# Example: "), "{key} is not in the template");
    }
}

#[test]
fn what_is_printed_can_be_read_again() {
    assert_eq!(toml::from_str::<Settings>(&all().to_toml()).unwrap(), all());
}

#[test]
fn defaults_are_those_of_the_library() {
    let settings = Settings::default().garm().unwrap();
    assert_eq!(format!("{settings:?}"), format!("{:?}", garm::Settings::default()));
}

#[test]
fn the_schema_has_the_keys_of_the_settings_and_no_others() {
    let schema: Value = serde_json::from_str(schema::CONFIG).unwrap();
    let settings = serde_json::to_value(all()).unwrap();
    compare(&schema, &settings, "");
}

/// Compares the keys that a schema describes with those of a value that has them all.
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
fn the_schema_takes_what_is_read_and_refuses_what_is_not() {
    let schema: Value = serde_json::from_str(schema::CONFIG).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap());
    let uncommented = uncommented(|_| true);
    for text in [ALL, &uncommented, &all().to_toml(), ""] {
        let error = validator.iter_errors(&json(text).unwrap()).map(|e| e.to_string()).next();
        assert_eq!(error, None);
    }
    for text in [
        "[flavor.a]",
        "[flavors.a]\ncpu = 1",
        "[flavors.a]\ncpus = 0",
        "[flavors.a]\npids = 0",
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
        toml::from_str::<Settings>(text).unwrap_err();
        assert!(!validator.is_valid(&json(text).unwrap()), "{text}");
    }
}

#[test]
fn proxies_are_garms_or_else_the_settings() {
    let settings: Settings =
        toml::from_str("[proxy]\nhttps = \"http://p\"\nno-proxy = \"a\"").unwrap();
    assert_eq!(settings.proxy("https_proxy", None).as_deref(), Some("http://p"));
    assert_eq!(settings.proxy("no_proxy", Some(String::new())).as_deref(), Some("a"));
    assert_eq!(settings.proxy("https_proxy", Some("x".to_owned())).as_deref(), Some("x"));
    assert_eq!(settings.proxy("HTTPS_PROXY", None), None);
}
