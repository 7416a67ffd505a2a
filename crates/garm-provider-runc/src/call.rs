//! Calls of GARM: the operation and its arguments.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_files::fs::{PathContext as _, PathError};
use serde_json::Value;

use super::bootstrap::{Bootstrap, BootstrapError};
use super::instance::GarmInstance;

/// A call of GARM.
#[derive(Clone, Debug)]
pub struct GarmCall {
    pub command: GarmCommand,
    /// Id of the calling GARM, which sees only its own instances.
    pub controller_id: String,
    /// Settings file; none for the default one.
    pub config_file: Option<PathBuf>,
}

/// An operation of GARM, with its arguments. The `id` of an instance is not checked: no instance has an
/// invalid name.
#[derive(Clone, Debug)]
pub enum GarmCommand {
    CreateInstance(Box<Bootstrap>),
    DeleteInstance {
        id: String,
    },
    /// Print the status of an instance.
    GetInstance {
        id: String,
    },
    /// Print the status of all instances of a pool, including stopped ones.
    ListInstances {
        pool_id: String,
    },
    /// Remove all instances of this GARM.
    RemoveAllInstances,
    StartInstance {
        id: String,
    },
    StopInstance {
        id: String,
    },
    /// Print the version of the provider.
    GetVersion,
    /// Print the [`INTERFACE_VERSIONS`].
    GetSupportedInterfaceVersions,
    /// Check that instances of a pool can be created. Values that GARM does not send are empty.
    ValidatePoolInfo(Box<Bootstrap>),
    /// Print the JSON schema of settings.
    GetConfigJsonSchema,
    /// Print the JSON schema of extra specs.
    GetExtraSpecsJsonSchema,
}

/// Result of a call, as reported to GARM by the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallExit {
    Done,
    Failed,
    /// The instance does not exist.
    NotFound,
    Duplicate,
}

impl CallExit {
    /// Returns the exit code that GARM expects.
    pub const fn code(self) -> u8 {
        match self {
            CallExit::Done => 0,
            CallExit::Failed => 1,
            CallExit::NotFound => 30,
            CallExit::Duplicate => 31,
        }
    }
}

/// Environment variable with the operation, set in every call of GARM.
pub const COMMAND_VARIABLE: &str = "GARM_COMMAND";

/// Supported versions of GARM's interface. A call without a version uses the first.
pub const INTERFACE_VERSIONS: [&str; 2] = ["v0.1.0", "v0.1.1"];

/// Size limit of the bootstrap document. With scripts in extra specs, certificates and runner archives, documents have
/// some tens of kilobytes.
pub const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Errors of reading a call, with the messages of GARM's library for the errors that it knows.
#[derive(Debug, thiserror::Error)]
pub enum ReadCallError {
    #[error(
        "unsupported interface version: {0}; expected {known}",
        known = INTERFACE_VERSIONS.join(" or ")
    )]
    InterfaceVersion(String),
    /// A variable is missing or empty.
    #[error("missing {0}")]
    Variable(&'static str),
    /// The settings file does not exist.
    #[error("error accessing config file")]
    ConfigFile(#[source] PathError),
    #[error("unknown GARM_COMMAND: {0}")]
    Command(String),
    #[error("CreateInstance requires data passed into stdin")]
    NoDocument,
    #[error("cannot read standard input")]
    Read(#[source] io::Error),
    #[error("standard input is larger than the limit of {} MiB", MAX_DOCUMENT_BYTES >> 20)]
    TooLarge,
    #[error(transparent)]
    Document(#[from] BootstrapError),
    /// The document has no instance name.
    #[error("missing bootstrap params: the document on standard input has no name")]
    NoName,
    #[error(
        "invalid instance name {0:?}: expected up to 128 letters, digits, \".\", \"_\" and \"-\", \
         a letter or a digit first"
    )]
    Name(String),
    #[error("missing pool ID: GARM_POOL_ID is not set or empty")]
    NoPool,
    #[error("missing instance ID: GARM_INSTANCE_ID is not set or empty")]
    NoInstance,
    #[error("GARM_POOL_EXTRASPECS is not base64")]
    ExtraSpecsEncoding(#[source] base64::DecodeError),
    #[error("GARM_POOL_EXTRASPECS is not JSON")]
    ExtraSpecs(#[source] serde_json::Error),
}

impl GarmCall {
    /// Reads a call from the environment and standard input of the program that GARM started.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        stdin: impl Read,
    ) -> Result<Self, ReadCallError> {
        let text = |name: &str| variable(name).unwrap_or_default();
        let version = text("GARM_INTERFACE_VERSION");
        if !version.is_empty() && !INTERFACE_VERSIONS.contains(&version.as_str()) {
            return Err(ReadCallError::InterfaceVersion(version));
        }
        let required =
            |name| Some(text(name)).filter(|t| !t.is_empty()).ok_or(ReadCallError::Variable(name));
        let name = required(COMMAND_VARIABLE)?;
        // GARM sets an empty variable if its settings name no file.
        let config_file = variable("GARM_PROVIDER_CONFIG_FILE");
        let config_file =
            config_file.ok_or(ReadCallError::Variable("GARM_PROVIDER_CONFIG_FILE"))?;
        let config_file = Some(config_file).filter(|f| !f.is_empty()).map(PathBuf::from);
        if let Some(path) = &config_file {
            fs::symlink_metadata(path)
                .with_path("look up", path)
                .map_err(ReadCallError::ConfigFile)?;
        }
        let controller_id = required("GARM_CONTROLLER_ID")?;
        let command = command(name, text, stdin)?;
        Ok(GarmCall { command, controller_id, config_file })
    }
}

fn command(
    name: String,
    text: impl Fn(&str) -> String,
    stdin: impl Read,
) -> Result<GarmCommand, ReadCallError> {
    let id = || {
        Some(text("GARM_INSTANCE_ID")).filter(|t| !t.is_empty()).ok_or(ReadCallError::NoInstance)
    };
    let pool_id =
        || Some(text("GARM_POOL_ID")).filter(|t| !t.is_empty()).ok_or(ReadCallError::NoPool);
    Ok(match name.as_str() {
        "CreateInstance" => {
            let document = document(stdin)?.ok_or(ReadCallError::NoDocument)?;
            if document.name.is_empty() {
                return Err(ReadCallError::NoName);
            }
            // Instances are listed by pool later.
            let pool_id = pool_id()?;
            if !GarmInstance::is_name(&document.name) {
                return Err(ReadCallError::Name(document.name));
            }
            GarmCommand::CreateInstance(Box::new(Bootstrap { pool_id, ..document }))
        }
        // The pool may be empty for these operations: GARM does not send it for runners of scale sets.
        "DeleteInstance" => GarmCommand::DeleteInstance { id: id()? },
        "GetInstance" => GarmCommand::GetInstance { id: id()? },
        // `Start` and `Stop` were once in GARM's documentation, but GARM never sent them.
        "StartInstance" | "Start" => GarmCommand::StartInstance { id: id()? },
        "StopInstance" | "Stop" => GarmCommand::StopInstance { id: id()? },
        "ListInstances" => GarmCommand::ListInstances { pool_id: pool_id()? },
        "RemoveAllInstances" => GarmCommand::RemoveAllInstances,
        "GetVersion" => GarmCommand::GetVersion,
        "GetSupportedInterfaceVersions" => GarmCommand::GetSupportedInterfaceVersions,
        "ValidatePoolInfo" => {
            // GARM's library intends to take the other properties from the document, but does not read it.
            let document = document(stdin)?.map_or_else(|| Bootstrap::parse(b"{}"), Ok)?;
            let pool_id = Some(text("GARM_POOL_ID")).filter(|id| !id.is_empty());
            GarmCommand::ValidatePoolInfo(Box::new(Bootstrap {
                extra_specs: extra_specs(&text("GARM_POOL_EXTRASPECS"))?,
                pool_id: pool_id.unwrap_or(document.pool_id),
                ..document
            }))
        }
        "GetConfigJSONSchema" => GarmCommand::GetConfigJsonSchema,
        "GetExtraSpecsJSONSchema" => GarmCommand::GetExtraSpecsJsonSchema,
        _ => return Err(ReadCallError::Command(name)),
    })
}

/// Reads the document on standard input; none if standard input is empty.
fn document(stdin: impl Read) -> Result<Option<Bootstrap>, ReadCallError> {
    let mut text = Vec::new();
    stdin.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut text).map_err(ReadCallError::Read)?;
    if text.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(ReadCallError::TooLarge);
    }
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    Ok(Some(Bootstrap::parse(&text)?))
}

fn extra_specs(text: &str) -> Result<Value, ReadCallError> {
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let text = STANDARD.decode(text).map_err(ReadCallError::ExtraSpecsEncoding)?;
    serde_json::from_slice(&text).map_err(ReadCallError::ExtraSpecs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use oci_hooks_files::error::chain;

    use super::*;

    /// Returns environment and standard input of a recorded call, with a settings file that exists here.
    fn read_recorded_call(path: &Path) -> (BTreeMap<String, String>, Vec<u8>) {
        let call: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let mut env: BTreeMap<String, String> =
            serde_json::from_value(call["env"].clone()).unwrap();
        env.insert("GARM_PROVIDER_CONFIG_FILE".to_owned(), "/dev/null".to_owned());
        let stdin = call.get("stdin").map_or_else(Vec::new, |stdin| stdin.to_string().into_bytes());
        (env, stdin)
    }

    fn read(env: &BTreeMap<String, String>, stdin: &[u8]) -> Result<GarmCall, ReadCallError> {
        GarmCall::read(|name| env.get(name).cloned(), stdin)
    }

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/calls").join(format!("{name}.json"))
    }

    fn of(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const USUAL: [(&str, &str); 3] = [
        ("GARM_CONTROLLER_ID", "c"),
        ("GARM_PROVIDER_CONFIG_FILE", "/dev/null"),
        ("GARM_COMMAND", "ListInstances"),
    ];

    fn usual_variables(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut env = of(&USUAL);
        env.extend(of(vars));
        env
    }

    #[test]
    fn every_recorded_call_is_parsed() {
        let mut seen = 0;
        for entry in fs::read_dir(data("x").parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            let (env, stdin) = read_recorded_call(&path);
            let call = read(&env, &stdin).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(call.controller_id, env["GARM_CONTROLLER_ID"]);
            let command = &env["GARM_COMMAND"];
            assert!(format!("{:?}", call.command).starts_with(command.as_str()), "{call:?}");
            match call.command {
                GarmCommand::CreateInstance(document) => {
                    assert_eq!(document.pool_id, env["GARM_POOL_ID"]);
                }
                GarmCommand::DeleteInstance { id }
                | GarmCommand::GetInstance { id }
                | GarmCommand::StartInstance { id }
                | GarmCommand::StopInstance { id } => assert_eq!(id, env["GARM_INSTANCE_ID"]),
                GarmCommand::ListInstances { pool_id } => assert_eq!(pool_id, env["GARM_POOL_ID"]),
                GarmCommand::RemoveAllInstances => {}
                other => panic!("GARM does not send {other:?}"),
            }
            seen += 1;
        }
        assert_eq!(seen, 23);
    }

    #[test]
    fn scale_set_runner_is_deleted_even_with_an_empty_pool() {
        let (env, _) = read_recorded_call(&data("v0.1.1-DeleteInstance-scaleset"));
        assert_eq!(env["GARM_POOL_ID"], "");
        let call = read(&env, b"").unwrap();
        assert!(
            matches!(call.command, GarmCommand::DeleteInstance { id } if id == "garm-tueukuaegi1i")
        );
    }

    #[test]
    fn errors_are_checked_in_the_order_of_the_reference() {
        const NO_POOL: &str = "missing pool ID: GARM_POOL_ID is not set or empty";
        const NO_INSTANCE: &str = "missing instance ID: GARM_INSTANCE_ID is not set or empty";
        let create = ("GARM_COMMAND", "CreateInstance");
        let pool = ("GARM_POOL_ID", "p");
        for (env, stdin, expected) in [
            (
                of(&[("GARM_INTERFACE_VERSION", "v0.2.0")]),
                "",
                "unsupported interface version: v0.2.0; expected v0.1.0 or v0.1.1",
            ),
            (of(&[]), "", "missing GARM_COMMAND"),
            (of(&[("GARM_COMMAND", "Nonsense")]), "", "missing GARM_PROVIDER_CONFIG_FILE"),
            (
                of(&[("GARM_COMMAND", "Nonsense"), ("GARM_PROVIDER_CONFIG_FILE", "/no/such")]),
                "",
                "error accessing config file: cannot look up /no/such: No such file or directory \
                 (os error 2)",
            ),
            (
                of(&[("GARM_COMMAND", "Nonsense"), ("GARM_PROVIDER_CONFIG_FILE", "/dev/null")]),
                "",
                "missing GARM_CONTROLLER_ID",
            ),
            (
                usual_variables(&[("GARM_COMMAND", "Nonsense")]),
                "",
                "unknown GARM_COMMAND: Nonsense",
            ),
            (usual_variables(&[create]), " \n", "CreateInstance requires data passed into stdin"),
            (
                usual_variables(&[create]),
                "{}",
                "missing bootstrap params: the document on standard input has no name",
            ),
            (usual_variables(&[create]), r#"{"name": "a"}"#, NO_POOL),
            (
                usual_variables(&[create, pool]),
                r#"{"name": "../a"}"#,
                "invalid instance name \"../a\": expected up to 128 letters, digits, \".\", \
                 \"_\" and \"-\", a letter or a digit first",
            ),
            (usual_variables(&[("GARM_COMMAND", "DeleteInstance")]), "", NO_INSTANCE),
            (usual_variables(&[("GARM_COMMAND", "GetInstance"), pool]), "", NO_INSTANCE),
            (usual_variables(&[("GARM_COMMAND", "StartInstance")]), "", NO_INSTANCE),
            (usual_variables(&[("GARM_COMMAND", "Stop")]), "", NO_INSTANCE),
            (usual_variables(&[]), "", NO_POOL),
        ] {
            assert_eq!(chain(&read(&env, stdin.as_bytes()).unwrap_err()), expected);
        }
    }

    #[test]
    fn default_settings_file_is_used_if_none_is_given() {
        let env = usual_variables(&[("GARM_PROVIDER_CONFIG_FILE", ""), ("GARM_POOL_ID", "p")]);
        assert_eq!(read(&env, b"").unwrap().config_file, None);
    }

    #[test]
    fn invalid_instance_names_are_accepted_for_lookup() {
        let env =
            usual_variables(&[("GARM_COMMAND", "Start"), ("GARM_INSTANCE_ID", "../../etc/passwd")]);
        let call = read(&env, b"").unwrap();
        assert!(
            matches!(call.command, GarmCommand::StartInstance { id } if id == "../../etc/passwd")
        );
    }

    #[test]
    fn oversized_document_is_rejected() {
        let env = usual_variables(&[("GARM_COMMAND", "CreateInstance")]);
        let error = GarmCall::read(|name| env.get(name).cloned(), io::repeat(b' ')).unwrap_err();
        assert_eq!(error.to_string(), "standard input is larger than the limit of 16 MiB");
    }

    #[test]
    fn pool_validation_uses_extra_specs_and_image() {
        let env = usual_variables(&[
            ("GARM_COMMAND", "ValidatePoolInfo"),
            ("GARM_INTERFACE_VERSION", "v0.1.1"),
            ("GARM_POOL_EXTRASPECS", "eyJjcHVzIjoyfQ=="),
        ]);
        let text = br#"{"image": "debian:12", "arch": "arm64", "os_type": "windows"}"#;
        let GarmCommand::ValidatePoolInfo(pool) = read(&env, text).unwrap().command else {
            panic!("it is another command")
        };
        assert_eq!(
            (pool.image.as_str(), &pool.extra_specs["cpus"]),
            ("debian:12", &Value::from(2))
        );
        assert_eq!((pool.arch.as_str(), pool.os_type.as_str()), ("arm64", "windows"));
        for (specs, expected) in [("*", "is not base64"), ("eyI=", "is not JSON")] {
            let mut env = env.clone();
            env.insert("GARM_POOL_EXTRASPECS".to_owned(), specs.to_owned());
            let message = read(&env, b"").unwrap_err().to_string();
            assert_eq!(message, format!("GARM_POOL_EXTRASPECS {expected}"));
        }
    }

    #[test]
    fn exit_codes_match_those_of_garm() {
        let codes = [CallExit::Done, CallExit::Failed, CallExit::NotFound, CallExit::Duplicate]
            .map(CallExit::code);
        assert_eq!(codes, [0, 1, 30, 31]);
    }
}
