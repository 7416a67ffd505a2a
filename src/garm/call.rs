//! One call of GARM: which operation, on what.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::bootstrap::{Bootstrap, BootstrapError};
use super::instance::Instance;
use crate::sys::fs::{PathContext as _, PathError};

/// What GARM asks for.
#[derive(Clone, Debug)]
pub struct Call {
    pub command: Command,
    /// Which GARM asks: it sees no other's instances.
    pub controller_id: String,
    /// The file of settings; none for the usual one.
    pub config_file: Option<PathBuf>,
}

/// An operation, with what it needs. An instance is named by a text that may be no name at all;
/// then there is no such instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    CreateInstance(Box<Bootstrap>),
    DeleteInstance {
        id: String,
    },
    /// Tell how an instance is.
    GetInstance {
        id: String,
    },
    /// Tell how all instances of a pool are, also those that have ended.
    ListInstances {
        pool_id: String,
    },
    /// Remove all instances of this GARM.
    RemoveAllInstances,
    /// Start an instance that has ended.
    StartInstance {
        id: String,
    },
    StopInstance {
        id: String,
    },
    /// Tell the version of the provider.
    GetVersion,
    /// Tell the [`INTERFACE_VERSIONS`].
    GetSupportedInterfaceVersions,
    /// Tell whether there can be instances with this image, flavor and these extra specs.
    ValidatePoolInfo {
        /// The image; empty if it is not said.
        image: String,
        /// The flavor; empty if it is not said.
        flavor: String,
        /// The extra specs; null if there are none.
        extra_specs: Value,
    },
    /// Tell what a file of settings may hold.
    GetConfigJsonSchema,
    /// Tell what extra specs may hold.
    GetExtraSpecsJsonSchema,
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// It could not be done.
    Failed,
    /// There is no such instance.
    NotFound,
    /// There is such an instance already.
    Duplicate,
}

impl Exit {
    /// Returns the exit code by which GARM is told.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::NotFound => 30,
            Exit::Duplicate => 31,
        }
    }
}

/// The variable that names the operation: it is set in every call of GARM.
pub const COMMAND_VARIABLE: &str = "GARM_COMMAND";

/// The versions of GARM's interface that are known here. No version at all means the first.
pub const INTERFACE_VERSIONS: [&str; 2] = ["v0.1.0", "v0.1.1"];

/// The most that the document of an instance may hold. Extra specs with scripts, certificates and
/// the runner's archives together are some tens of kilobytes.
pub const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Why a call cannot be understood. Messages are those of GARM's own library where it has them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The interface is of another version.
    #[error("unsupported interface version: {0}")]
    InterfaceVersion(String),
    /// A variable is missing or empty.
    #[error("missing {0}")]
    Variable(&'static str),
    /// The settings that are named are not there.
    #[error("error accessing config file")]
    ConfigFile(#[source] PathError),
    /// There is no such operation.
    #[error("unknown GARM_COMMAND: {0}")]
    Command(String),
    #[error("CreateInstance requires data passed into stdin")]
    NoDocument,
    /// The document cannot be read.
    #[error("cannot read standard input")]
    Read(#[source] io::Error),
    /// The document is not of GARM.
    #[error("standard input holds more than {} MiB", MAX_DOCUMENT_BYTES >> 20)]
    TooLarge,
    /// The document is not understood.
    #[error(transparent)]
    Document(#[from] BootstrapError),
    /// The document does not say what to call the instance.
    #[error("missing bootstrap params")]
    NoName,
    /// No instance can have this name.
    #[error(
        "{0:?} cannot be the name of an instance: up to 128 letters, digits, \".\", \"_\" and \"-\", \
         a letter or a digit first"
    )]
    Name(String),
    /// It is not said which pool.
    #[error("missing pool ID")]
    NoPool,
    /// It is not said which instance.
    #[error("missing instance ID")]
    NoInstance,
    /// The extra specs are not base64.
    #[error("GARM_POOL_EXTRASPECS is not base64")]
    ExtraSpecsEncoding(#[source] base64::DecodeError),
    /// The extra specs are no JSON.
    #[error("GARM_POOL_EXTRASPECS is not JSON")]
    ExtraSpecs(#[source] serde_json::Error),
}

impl Call {
    /// Reads a call from the variables and standard input of the program that GARM started.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        stdin: impl Read,
    ) -> Result<Self, CallError> {
        let text = |name: &str| variable(name).unwrap_or_default();
        let version = text("GARM_INTERFACE_VERSION");
        if !version.is_empty() && !INTERFACE_VERSIONS.contains(&version.as_str()) {
            return Err(CallError::InterfaceVersion(version));
        }
        let required =
            |name| Some(text(name)).filter(|t| !t.is_empty()).ok_or(CallError::Variable(name));
        let name = required(COMMAND_VARIABLE)?;
        // Empty is what GARM says if its own settings name no file.
        let config_file = variable("GARM_PROVIDER_CONFIG_FILE");
        let config_file = config_file.ok_or(CallError::Variable("GARM_PROVIDER_CONFIG_FILE"))?;
        let config_file = Some(config_file).filter(|f| !f.is_empty()).map(PathBuf::from);
        if let Some(path) = &config_file {
            fs::symlink_metadata(path).at("look up", path).map_err(CallError::ConfigFile)?;
        }
        let controller_id = required("GARM_CONTROLLER_ID")?;
        let command = command(name, text, stdin)?;
        Ok(Call { command, controller_id, config_file })
    }
}

fn command(
    name: String,
    text: impl Fn(&str) -> String,
    stdin: impl Read,
) -> Result<Command, CallError> {
    let id =
        || Some(text("GARM_INSTANCE_ID")).filter(|t| !t.is_empty()).ok_or(CallError::NoInstance);
    let pool_id = || Some(text("GARM_POOL_ID")).filter(|t| !t.is_empty()).ok_or(CallError::NoPool);
    Ok(match name.as_str() {
        "CreateInstance" => {
            let document = document(stdin)?.ok_or(CallError::NoDocument)?;
            if document.name.is_empty() {
                return Err(CallError::NoName);
            }
            // By which the instance is listed later.
            let pool_id = pool_id()?;
            if !Instance::is_name(&document.name) {
                return Err(CallError::Name(document.name));
            }
            Command::CreateInstance(Box::new(Bootstrap { pool_id, ..document }))
        }
        // For these the pool may be empty: GARM does not name it for runners of scale sets.
        "DeleteInstance" => Command::DeleteInstance { id: id()? },
        "GetInstance" => Command::GetInstance { id: id()? },
        // GARM's documentation had the short names once; GARM never did.
        "StartInstance" | "Start" => Command::StartInstance { id: id()? },
        "StopInstance" | "Stop" => Command::StopInstance { id: id()? },
        "ListInstances" => Command::ListInstances { pool_id: pool_id()? },
        "RemoveAllInstances" => Command::RemoveAllInstances,
        "GetVersion" => Command::GetVersion,
        "GetSupportedInterfaceVersions" => Command::GetSupportedInterfaceVersions,
        "ValidatePoolInfo" => {
            let extra_specs = extra_specs(&text("GARM_POOL_EXTRASPECS"))?;
            // GARM's library means to take these from a document which it then does not read.
            let (image, flavor) = document(stdin)?
                .map_or_else(Default::default, |document| (document.image, document.flavor));
            Command::ValidatePoolInfo { image, flavor, extra_specs }
        }
        "GetConfigJSONSchema" => Command::GetConfigJsonSchema,
        "GetExtraSpecsJSONSchema" => Command::GetExtraSpecsJsonSchema,
        _ => return Err(CallError::Command(name)),
    })
}

/// Reads the document on standard input; none if that is empty.
fn document(stdin: impl Read) -> Result<Option<Bootstrap>, CallError> {
    let mut text = Vec::new();
    stdin.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut text).map_err(CallError::Read)?;
    if text.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(CallError::TooLarge);
    }
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    Ok(Some(Bootstrap::parse(&text)?))
}

fn extra_specs(text: &str) -> Result<Value, CallError> {
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let text = STANDARD.decode(text).map_err(CallError::ExtraSpecsEncoding)?;
    serde_json::from_slice(&text).map_err(CallError::ExtraSpecs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::sys::error::chain;

    /// What a recorded call was given. Its file of settings is not here; this one is.
    fn recorded(path: &Path) -> (BTreeMap<String, String>, Vec<u8>) {
        let call: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let mut env: BTreeMap<String, String> =
            serde_json::from_value(call["env"].clone()).unwrap();
        env.insert("GARM_PROVIDER_CONFIG_FILE".to_owned(), "/dev/null".to_owned());
        let stdin = call.get("stdin").map_or_else(Vec::new, |stdin| stdin.to_string().into_bytes());
        (env, stdin)
    }

    fn read(env: &BTreeMap<String, String>, stdin: &[u8]) -> Result<Call, CallError> {
        Call::read(|name| env.get(name).cloned(), stdin)
    }

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/garm").join(format!("{name}.json"))
    }

    fn of(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const USUAL: [(&str, &str); 3] = [
        ("GARM_CONTROLLER_ID", "c"),
        ("GARM_PROVIDER_CONFIG_FILE", "/dev/null"),
        ("GARM_COMMAND", "ListInstances"),
    ];

    fn usual(vars: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut env = of(&USUAL);
        env.extend(of(vars));
        env
    }

    #[test]
    fn every_recorded_call_is_understood() {
        let mut seen = 0;
        for entry in fs::read_dir(data("x").parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            let (env, stdin) = recorded(&path);
            let call = read(&env, &stdin).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(call.controller_id, env["GARM_CONTROLLER_ID"]);
            let command = &env["GARM_COMMAND"];
            assert!(format!("{:?}", call.command).starts_with(command.as_str()), "{call:?}");
            match call.command {
                Command::CreateInstance(document) => {
                    assert_eq!(document.pool_id, env["GARM_POOL_ID"]);
                }
                Command::DeleteInstance { id }
                | Command::GetInstance { id }
                | Command::StartInstance { id }
                | Command::StopInstance { id } => assert_eq!(id, env["GARM_INSTANCE_ID"]),
                Command::ListInstances { pool_id } => assert_eq!(pool_id, env["GARM_POOL_ID"]),
                Command::RemoveAllInstances => {}
                other => panic!("GARM does not send {other:?}"),
            }
            seen += 1;
        }
        assert_eq!(seen, 23);
    }

    #[test]
    fn a_runner_of_a_scale_set_is_deleted_though_its_pool_is_empty() {
        let (env, _) = recorded(&data("v0.1.1-DeleteInstance-scaleset"));
        assert_eq!(env["GARM_POOL_ID"], "");
        let call = read(&env, b"").unwrap();
        assert!(
            matches!(call.command, Command::DeleteInstance { id } if id == "garm-tueukuaegi1i")
        );
    }

    #[test]
    fn mistakes_are_told_in_the_order_of_the_reference() {
        let create = ("GARM_COMMAND", "CreateInstance");
        let pool = ("GARM_POOL_ID", "p");
        for (env, stdin, expected) in [
            (
                of(&[("GARM_INTERFACE_VERSION", "v0.2.0")]),
                "",
                "unsupported interface version: v0.2.0",
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
            (usual(&[("GARM_COMMAND", "Nonsense")]), "", "unknown GARM_COMMAND: Nonsense"),
            (usual(&[create]), " \n", "CreateInstance requires data passed into stdin"),
            (usual(&[create]), "{}", "missing bootstrap params"),
            (usual(&[create]), r#"{"name": "a"}"#, "missing pool ID"),
            (
                usual(&[create, pool]),
                r#"{"name": "../a"}"#,
                "\"../a\" cannot be the name of an instance: up to 128 letters, digits, \".\", \
                 \"_\" and \"-\", a letter or a digit first",
            ),
            (usual(&[("GARM_COMMAND", "DeleteInstance")]), "", "missing instance ID"),
            (usual(&[("GARM_COMMAND", "GetInstance"), pool]), "", "missing instance ID"),
            (usual(&[("GARM_COMMAND", "StartInstance")]), "", "missing instance ID"),
            (usual(&[("GARM_COMMAND", "Stop")]), "", "missing instance ID"),
            (usual(&[]), "", "missing pool ID"),
        ] {
            assert_eq!(chain(&read(&env, stdin.as_bytes()).unwrap_err()), expected);
        }
    }

    #[test]
    fn without_a_file_of_settings_the_usual_one_is_meant() {
        let env = usual(&[("GARM_PROVIDER_CONFIG_FILE", ""), ("GARM_POOL_ID", "p")]);
        assert_eq!(read(&env, b"").unwrap().config_file, None);
    }

    #[test]
    fn what_is_no_name_is_kept_for_commands_that_look_an_instance_up() {
        let env = usual(&[("GARM_COMMAND", "Start"), ("GARM_INSTANCE_ID", "../../etc/passwd")]);
        let call = read(&env, b"").unwrap();
        assert!(matches!(call.command, Command::StartInstance { id } if id == "../../etc/passwd"));
    }

    #[test]
    fn a_document_without_end_is_refused() {
        let env = usual(&[("GARM_COMMAND", "CreateInstance")]);
        let error = Call::read(|name| env.get(name).cloned(), io::repeat(b' ')).unwrap_err();
        assert_eq!(error.to_string(), "standard input holds more than 16 MiB");
    }

    #[test]
    fn a_pool_is_validated_by_its_extra_specs_and_what_is_said_of_it() {
        let env = usual(&[
            ("GARM_COMMAND", "ValidatePoolInfo"),
            ("GARM_INTERFACE_VERSION", "v0.1.1"),
            ("GARM_POOL_EXTRASPECS", "eyJjcHVzIjoyfQ=="),
        ]);
        let Command::ValidatePoolInfo { image, extra_specs, .. } =
            read(&env, br#"{"image": "debian:12"}"#).unwrap().command
        else {
            panic!("it is another command")
        };
        assert_eq!((image.as_str(), &extra_specs["cpus"]), ("debian:12", &Value::from(2)));
        for (specs, expected) in [("*", "is not base64"), ("eyI=", "is not JSON")] {
            let mut env = env.clone();
            env.insert("GARM_POOL_EXTRASPECS".to_owned(), specs.to_owned());
            let message = read(&env, b"").unwrap_err().to_string();
            assert_eq!(message, format!("GARM_POOL_EXTRASPECS {expected}"));
        }
    }

    #[test]
    fn exit_codes_are_those_that_garm_knows() {
        let codes = [Exit::Done, Exit::Failed, Exit::NotFound, Exit::Duplicate].map(Exit::code);
        assert_eq!(codes, [0, 1, 30, 31]);
    }
}
