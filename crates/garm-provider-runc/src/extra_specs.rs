//! Extra specs: options of a pool's instances in addition to image and flavor.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_files::quantity::{ByteSize, QuantityError};
use oci_hooks_files::spelling::closest_name;
use serde_json::Value;

use super::object::{JsonObject, JsonValueError};
use super::settings::{Cpus, CpusError, MIN_MEMORY_BYTES, MIN_PIDS};

/// Validated extra specs of a pool.
#[derive(Clone, Default, PartialEq)]
pub struct ExtraSpecs {
    pub env: BTreeMap<String, String>,
    /// Scripts to run first, as root, ordered by name.
    pub pre_install_scripts: BTreeMap<String, Vec<u8>>,
    pub extra_packages: Vec<String>,
    pub cpus: Option<Cpus>,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    /// Size limit of the root file system.
    pub disk_bytes: Option<u64>,
    /// Name of a network in the settings.
    pub network: Option<String>,
    /// Names of mounts in the settings.
    pub mounts: Vec<String>,
    /// Names of caches in the settings.
    pub caches: Vec<String>,
    /// User of the runner, a name or a number.
    pub user: Option<String>,
    /// If set, GARM's script starts the runner instead of the provider.
    pub use_garm_template: Option<bool>,
    /// If set, the runner's script `bin/installdependencies.sh` may install packages.
    pub install_dependencies: Option<bool>,
    /// If set, instances have all privileges of root.
    pub privileged: Option<bool>,
    /// If set, containers can be run in instances.
    pub nesting: Option<bool>,
}

/// All keys. The last four are common to all providers and have no effect here: GARM itself uses them for its
/// script, and the provider updates no packages.
const KEYS: [&str; 19] = [
    "env",
    "pre_install_scripts",
    "extra_packages",
    "cpus",
    "memory",
    "pids",
    "disk",
    "network",
    "mounts",
    "caches",
    "user",
    "use_garm_template",
    "install_dependencies",
    "privileged",
    "nesting",
    "runner_install_template",
    "extra_context",
    "disable_updates",
    "enable_boot_debug",
];

/// Name prefixes of variables that pools cannot set: GARM's, options of the runner's registration, and variables of
/// the dynamic linker.
const RESERVED_PREFIXES: [&str; 3] = ["GARM_", "ACTIONS_RUNNER_INPUT_", "LD_"];

/// Names of other variables that pools cannot set.
const RESERVED: [&str; 5] = ["BASH_ENV", "ENV", "GCONV_PATH", "HOME", "SHELLOPTS"];

/// Rule for the names of scripts, for messages.
const SCRIPT_NAME: &str = "a valid script name: expected up to 255 letters, digits, \".\", \"_\" and \"-\", a letter \
     or digit first";

/// Rule for the names of packages, for messages.
const PACKAGE_NAMES: &str = "an array of package names: expected up to 255 letters, digits and \"._-+:~=@/\" each, a \
     letter or digit first";

/// Size limit of all variables together. The kernel has the same limit for a single variable (`MAX_ARG_STRLEN`).
const MAX_ENV_BYTES: usize = 128 << 10;

/// Errors of parsing extra specs.
#[derive(Debug, thiserror::Error)]
pub enum ExtraSpecsError {
    #[error("unknown key {key:?}{}", suggestion.map(|s| format!(": did you mean {s:?}?")).unwrap_or_default())]
    Unknown { key: String, suggestion: Option<&'static str> },
    /// A value has the wrong type.
    #[error(transparent)]
    Kind(#[from] JsonValueError),
    #[error("{pointer:?} cannot be used")]
    Size { pointer: String, source: QuantityError },
    #[error("{pointer:?} cannot be used")]
    Cpus { pointer: String, source: CpusError },
    #[error("{pointer:?} is not base64")]
    Base64 { pointer: String, source: base64::DecodeError },
    #[error(
        "invalid variable name {pointer:?}: expected letters, digits and \"_\", no digit first"
    )]
    Variable { pointer: String },
    #[error("{pointer:?} is reserved: extra specs cannot set {}", reserved_names())]
    Reserved { pointer: String },
    #[error("\"/env\" is larger than {} KiB", MAX_ENV_BYTES >> 10)]
    TooLarge,
}

/// Returns the names of variables that pools cannot set, with `*` for any rest of a name.
fn reserved_names() -> String {
    let prefixes = RESERVED_PREFIXES.iter().map(|prefix| format!("{prefix}*"));
    let names = RESERVED.iter().map(|name| (*name).to_owned());
    prefixes.chain(names).collect::<Vec<_>>().join(", ")
}

impl ExtraSpecs {
    /// Validates extra specs; null stands for none.
    pub fn parse(specs: &Value) -> Result<Self, ExtraSpecsError> {
        if specs.is_null() {
            return Ok(ExtraSpecs::default());
        }
        let top = JsonObject::of(specs, String::new())?;
        if let Some(key) = top.keys().find(|key| !KEYS.contains(key)) {
            return Err(ExtraSpecsError::Unknown {
                key: key.chars().take(64).collect(),
                suggestion: closest_name(key, KEYS),
            });
        }
        top.text("runner_install_template")?;
        top.map_of_texts("extra_context")?;
        top.flag("disable_updates")?;
        top.flag("enable_boot_debug")?;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(ExtraSpecs {
            env: env(&top)?,
            pre_install_scripts: scripts(&top)?,
            extra_packages: packages(&top)?,
            cpus: cpus(&top)?,
            memory_bytes: size(&top, "memory", MIN_MEMORY_BYTES, MEMORY)?,
            pids: pids(&top)?,
            disk_bytes: size(&top, "disk", 1, DISK)?,
            network: some(top.text("network")?),
            mounts: top.texts("mounts")?,
            caches: top.texts("caches")?,
            user: user(&top)?,
            use_garm_template: top.flag("use_garm_template")?,
            install_dependencies: top.flag("install_dependencies")?,
            privileged: top.flag("privileged")?,
            nesting: top.flag("nesting")?,
        })
    }
}

impl fmt::Debug for ExtraSpecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables and scripts may contain secrets.
        f.debug_struct("ExtraSpecs").finish_non_exhaustive()
    }
}

fn env(top: &JsonObject<'_>) -> Result<BTreeMap<String, String>, ExtraSpecsError> {
    let env = top.map_of_texts("env")?;
    let place = top.object("env")?;
    for (name, value) in &env {
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || !name.bytes().all(is_word)
        {
            return Err(ExtraSpecsError::Variable { pointer: place.pointer(name) });
        }
        if RESERVED_PREFIXES.iter().any(|p| name.starts_with(p))
            || RESERVED.contains(&name.as_str())
        {
            return Err(ExtraSpecsError::Reserved { pointer: place.pointer(name) });
        }
        // The runner reads some of its variables from a file with one per line.
        if value.contains(['\0', '\n', '\r']) {
            return Err(place.value_error(name, "a single line without NUL characters").into());
        }
    }
    if env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>() > MAX_ENV_BYTES {
        return Err(ExtraSpecsError::TooLarge);
    }
    Ok(env)
}

fn scripts(top: &JsonObject<'_>) -> Result<BTreeMap<String, Vec<u8>>, ExtraSpecsError> {
    let place = top.object("pre_install_scripts")?;
    let scripts = top.map_of_texts("pre_install_scripts")?.into_iter().map(|(name, text)| {
        // Reports to GARM and the instance's log contain the name.
        if !is_word(&name, b"._-") {
            return Err(place.value_error(&name, SCRIPT_NAME).into());
        }
        let script = STANDARD.decode(text);
        let pointer = || place.pointer(&name);
        let script =
            script.map_err(|source| ExtraSpecsError::Base64 { pointer: pointer(), source })?;
        Ok((name, script))
    });
    scripts.collect()
}

fn packages(top: &JsonObject<'_>) -> Result<Vec<String>, ExtraSpecsError> {
    let packages = top.texts("extra_packages")?;
    // Package names are arguments of the image's package manager, and must not be options.
    if packages.iter().all(|package| is_word(package, b"._-+:~=@/")) {
        Ok(packages)
    } else {
        Err(top.value_error("extra_packages", PACKAGE_NAMES).into())
    }
}

fn user(top: &JsonObject<'_>) -> Result<Option<String>, ExtraSpecsError> {
    let user = top.text("user")?;
    if user.is_empty() {
        return Ok(None);
    }
    if !is_word(&user, b"._-@") && !is_word(&user.replacen('_', "u", 1), b"._-@") {
        return Err(top.value_error("user", "a user name or a numeric user ID").into());
    }
    Ok(Some(user))
}

fn cpus(top: &JsonObject<'_>) -> Result<Option<Cpus>, ExtraSpecsError> {
    let Some(count) = top.get("cpus") else { return Ok(None) };
    let count = count.as_f64().ok_or_else(|| top.value_error("cpus", "a number"))?;
    let cpus = Cpus::new(count);
    cpus.map(Some).map_err(|source| ExtraSpecsError::Cpus { pointer: top.pointer("cpus"), source })
}

fn pids(top: &JsonObject<'_>) -> Result<Option<u32>, ExtraSpecsError> {
    let Some(count) = top.get("pids") else { return Ok(None) };
    let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
    match count {
        Some(count @ MIN_PIDS..) => Ok(Some(count)),
        _ => Err(top.value_error("pids", "a whole number from 32 to 4294967295").into()),
    }
}

/// Valid values of `memory`, for messages.
const MEMORY: &str = "a size of at least 32MiB, such as \"4GiB\", or a number of bytes";

/// Valid values of `disk`, for messages.
const DISK: &str = "a size greater than 0, such as \"4GiB\", or a number of bytes";

fn size(
    top: &JsonObject<'_>,
    key: &str,
    min_bytes: u64,
    expected: &'static str,
) -> Result<Option<u64>, ExtraSpecsError> {
    let bytes = match top.get(key) {
        None => return Ok(None),
        Some(Value::String(text)) => {
            let size = text.chars().take(64).collect::<String>().parse::<ByteSize>();
            size.map_err(|source| ExtraSpecsError::Size { pointer: top.pointer(key), source })?.0
        }
        Some(value) => value.as_u64().unwrap_or_default(),
    };
    if bytes < min_bytes {
        return Err(top.value_error(key, expected).into());
    }
    Ok(Some(bytes))
}

/// Returns whether a text begins with a letter or digit, and consists of letters, digits and `others`.
fn is_word(text: &str, others: &[u8]) -> bool {
    text.len() <= 255
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || others.contains(&b))
}

#[cfg(test)]
mod tests {
    use oci_hooks_files::error::chain;
    use serde_json::json;

    use super::*;
    use crate::schema;

    /// Returns a value for each key.
    fn all_keys() -> Value {
        json!({
            "env": {"A": "x y", "_b2": ""},
            "pre_install_scripts": {"01-a.sh": "ZWNobyBoaQo="},
            "extra_packages": ["git", "libc6:i386", "g++=4:12~1"],
            "cpus": 1.5,
            "memory": "4GiB",
            "pids": 1000,
            "disk": 10_000_000_000_u64,
            "network": "inner",
            "mounts": ["certs"],
            "caches": ["cargo"],
            "user": "_build",
            "use_garm_template": true,
            "install_dependencies": false,
            "privileged": false,
            "nesting": true,
            "runner_install_template": "ZWNobw==",
            "extra_context": {"a": "b"},
            "disable_updates": true,
            "enable_boot_debug": true,
        })
    }

    fn validator() -> jsonschema::Validator {
        jsonschema::validator_for(&serde_json::from_str(schema::EXTRA_SPECS).unwrap()).unwrap()
    }

    #[test]
    fn every_key_is_read() {
        let specs = ExtraSpecs::parse(&all_keys()).unwrap();
        assert_eq!(specs.env["A"], "x y");
        assert_eq!(specs.pre_install_scripts["01-a.sh"], b"echo hi\n");
        assert_eq!(specs.extra_packages.len(), 3);
        assert_eq!(specs.cpus, Cpus::new(1.5).ok());
        assert_eq!(specs.memory_bytes, Some(4 << 30));
        assert_eq!((specs.pids, specs.disk_bytes), (Some(1000), Some(10_000_000_000)));
        assert_eq!(
            (specs.network.as_deref(), specs.user.as_deref()),
            (Some("inner"), Some("_build"))
        );
        assert_eq!(
            (specs.mounts, specs.caches),
            (vec!["certs".to_owned()], vec!["cargo".to_owned()])
        );
        assert_eq!(
            (specs.use_garm_template, specs.install_dependencies),
            (Some(true), Some(false))
        );
        assert_eq!((specs.privileged, specs.nesting), (Some(false), Some(true)));
    }

    #[test]
    fn empty_extra_specs_equal_null_or_missing_ones() {
        assert_eq!(ExtraSpecs::parse(&Value::Null).unwrap(), ExtraSpecs::default());
        assert_eq!(ExtraSpecs::parse(&json!({})).unwrap(), ExtraSpecs::default());
        let nulls: Value = KEYS.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
        assert_eq!(ExtraSpecs::parse(&nulls).unwrap(), ExtraSpecs::default());
        assert!(validator().is_valid(&nulls));
    }

    #[test]
    fn schema_has_exactly_the_known_keys() {
        let schema: Value = serde_json::from_str(schema::EXTRA_SPECS).unwrap();
        let mut described: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
        let mut known = KEYS.to_vec();
        known.sort_unstable();
        described.sort_unstable();
        assert_eq!(described, known);
        let all = all_keys();
        let mut sample: Vec<_> = all.as_object().unwrap().keys().map(String::as_str).collect();
        sample.sort_unstable();
        assert_eq!(sample, known);
        let error = validator().iter_errors(&all).map(|e| e.to_string()).next();
        assert_eq!(error, None);
    }

    #[test]
    fn errors_name_their_position() {
        for (specs, expected) in [
            (json!([]), "the top-level value is not an object"),
            (json!({"mounst": []}), "unknown key \"mounst\": did you mean \"mounts\"?"),
            (
                json!({"usegarmTemplate": 1}),
                "unknown key \"usegarmTemplate\": did you mean \"use_garm_template\"?",
            ),
            (json!({"k": "v"}), "unknown key \"k\""),
            (json!({"env": {"A": 1}}), "\"/env/A\" is not a string"),
            (json!({"env": ["A=1"]}), "\"/env\" is not an object"),
            (
                json!({"env": {"1A": ""}}),
                "invalid variable name \"/env/1A\": expected letters, digits and \"_\", no digit first",
            ),
            (
                json!({"env": {"a/b~": ""}}),
                "invalid variable name \"/env/a~1b~0\": expected letters, digits and \"_\", no digit first",
            ),
            (
                json!({"env": {"LD_PRELOAD": "x"}}),
                "\"/env/LD_PRELOAD\" is reserved: extra specs cannot set GARM_*, ACTIONS_RUNNER_INPUT_*, LD_*, \
                 BASH_ENV, ENV, GCONV_PATH, HOME, SHELLOPTS",
            ),
            (
                json!({"env": {"GARM_X": "x"}}),
                "\"/env/GARM_X\" is reserved: extra specs cannot set GARM_*, ACTIONS_RUNNER_INPUT_*, LD_*, \
                 BASH_ENV, ENV, GCONV_PATH, HOME, SHELLOPTS",
            ),
            (
                json!({"env": {"ACTIONS_RUNNER_INPUT_URL": "x"}}),
                "\"/env/ACTIONS_RUNNER_INPUT_URL\" is reserved: extra specs cannot set GARM_*, \
                 ACTIONS_RUNNER_INPUT_*, LD_*, BASH_ENV, ENV, GCONV_PATH, HOME, SHELLOPTS",
            ),
            (
                json!({"env": {"A": "x\nLD_PRELOAD=y"}}),
                "\"/env/A\" is not a single line without NUL characters",
            ),
            (
                json!({"pre_install_scripts": {"../a": ""}}),
                "\"/pre_install_scripts/..~1a\" is not a valid script name: expected up to 255 letters, digits, \
                 \".\", \"_\" and \"-\", a letter or digit first",
            ),
            (
                json!({"extra_packages": ["--root=/"]}),
                "\"/extra_packages\" is not an array of package names: expected up to 255 letters, digits and \
                 \"._-+:~=@/\" each, a letter or digit first",
            ),
            (json!({"cpus": "2"}), "\"/cpus\" is not a number"),
            (
                json!({"cpus": 0}),
                "\"/cpus\" cannot be used: invalid CPU count 0: expected 0.01–65536, for example 2 or 0.5",
            ),
            (
                json!({"memory": "4XB"}),
                "\"/memory\" cannot be used: invalid size \"4XB\": expected a number and its unit, as 20GB or 512MiB",
            ),
            (
                json!({"memory": (32 << 20) - 1}),
                "\"/memory\" is not a size of at least 32MiB, such as \"4GiB\", or a number of bytes",
            ),
            (
                json!({"disk": -5}),
                "\"/disk\" is not a size greater than 0, such as \"4GiB\", or a number of bytes",
            ),
            (json!({"pids": 31}), "\"/pids\" is not a whole number from 32 to 4294967295"),
            (json!({"pids": 32.5}), "\"/pids\" is not a whole number from 32 to 4294967295"),
            (json!({"user": "a:b"}), "\"/user\" is not a user name or a numeric user ID"),
            (json!({"mounts": "a"}), "\"/mounts\" is not an array"),
            (json!({"privileged": "yes"}), "\"/privileged\" is not true or false"),
            (json!({"disable_updates": "yes"}), "\"/disable_updates\" is not true or false"),
            (json!({"extra_context": {"a": 1}}), "\"/extra_context/a\" is not a string"),
        ] {
            assert_eq!(chain(&ExtraSpecs::parse(&specs).unwrap_err()), expected);
            assert!(!validator().is_valid(&specs), "{specs}");
        }
        let message =
            chain(&ExtraSpecs::parse(&json!({"pre_install_scripts": {"a": "*"}})).unwrap_err());
        assert!(message.starts_with("\"/pre_install_scripts/a\" is not base64: "), "{message}");
    }

    #[test]
    fn messages_about_hostile_input_stay_short() {
        let long = "x".repeat(1 << 20);
        let message = chain(&ExtraSpecs::parse(&json!({long.clone(): 1})).unwrap_err());
        assert!(message.len() < 200, "{}", message.len());
        let message = chain(&ExtraSpecs::parse(&json!({"memory": long.clone()})).unwrap_err());
        assert!(message.len() < 200, "{}", message.len());
        let message = chain(&ExtraSpecs::parse(&json!({"env": {"A": long}})).unwrap_err());
        assert_eq!(message, "\"/env\" is larger than 128 KiB");
    }

    #[test]
    fn debug_output_contains_no_secrets() {
        let specs = ExtraSpecs::parse(&json!({"env": {"TOKEN": "hunter2"}})).unwrap();
        assert!(!format!("{specs:?}").contains("hunter2"));
    }
}
