//! Parses image configurations: the defaults for containers of an image.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::digest::Digest;
use super::manifest::deserialize_or_default;
use super::platform::Platform;

/// Image configuration: the blob that a manifest's `config` refers to. The type has only the fields
/// that this project uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfiguration {
    #[serde(flatten)]
    pub platform: Platform,
    #[serde(default, deserialize_with = "deserialize_or_default")]
    pub config: ImageConfig,
    pub rootfs: RootFs,
}

/// Layers by diff ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// Digests of the uncompressed layers, lowest first.
    #[serde(default, deserialize_with = "deserialize_or_default")]
    pub diff_ids: Vec<Digest>,
}

/// Defaults for containers of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// Environment, as `NAME=VALUE` in order.
    #[serde(deserialize_with = "deserialize_or_default")]
    pub env: Vec<String>,
    /// Program to execute, with its first arguments.
    #[serde(deserialize_with = "deserialize_words")]
    pub entrypoint: Option<Vec<String>>,
    /// Arguments of the entrypoint; without an entrypoint, the program and its arguments.
    #[serde(deserialize_with = "deserialize_words")]
    pub cmd: Option<Vec<String>>,
    /// The user, as `USER` or `USER:GROUP`, names or numbers; empty means root.
    #[serde(deserialize_with = "deserialize_or_default")]
    pub user: String,
    /// The working directory; empty means `/`.
    #[serde(deserialize_with = "deserialize_or_default")]
    pub working_dir: String,
    /// Paths that get an anonymous volume.
    #[serde(deserialize_with = "keys", serialize_with = "as_keys")]
    pub volumes: BTreeSet<String>,
    /// The ports that the image serves, as `80/tcp`.
    #[serde(deserialize_with = "keys", serialize_with = "as_keys")]
    pub exposed_ports: BTreeSet<String>,
    #[serde(deserialize_with = "deserialize_or_default")]
    pub labels: BTreeMap<String, String>,
    /// Signal that stops the container, as a name or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Health check, which Docker adds to the image specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// Shell of `CMD-SHELL` health checks, which Docker adds to the image specification.
    #[serde(deserialize_with = "deserialize_words", skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
}

/// Docker's health check of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Healthcheck {
    /// Empty, `NONE`, `CMD` with arguments or `CMD-SHELL` with a command line.
    #[serde(deserialize_with = "deserialize_or_default")]
    pub test: Vec<String>,
    /// The time between checks; nanoseconds in JSON.
    #[serde(with = "nanoseconds", skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// Timeout of a check; nanoseconds in JSON.
    #[serde(with = "nanoseconds", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Period at the start in which failures do not count; nanoseconds in JSON.
    #[serde(with = "nanoseconds", skip_serializing_if = "Option::is_none")]
    pub start_period: Option<Duration>,
    /// The time between checks in the start period; nanoseconds in JSON.
    #[serde(with = "nanoseconds", skip_serializing_if = "Option::is_none")]
    pub start_interval: Option<Duration>,
    /// Consecutive failures that make the container unhealthy.
    #[serde(deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

/// Maximum number of layers: overlayfs stacks 500, and GARM's provider may add one with the runner.
pub const MAX_LAYERS: usize = 499;

/// Errors of reading an image configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("the image configuration is malformed")]
    Malformed(#[from] serde_json::Error),
    /// More layers than overlayfs can stack.
    #[error(
        "the image has {layers} layers, expected {MAX_LAYERS} at most: build it with fewer, as with \
         several commands in one RUN"
    )]
    Layers { layers: usize },
}

impl ImageConfiguration {
    /// Parses a configuration. Unknown fields are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigurationError> {
        let configuration: Self = serde_json::from_slice(bytes)?;
        let layers = configuration.rootfs.diff_ids.len();
        if layers > MAX_LAYERS {
            return Err(ConfigurationError::Layers { layers });
        }
        Ok(configuration)
    }
}

/// Deserializes a list of strings. Accepts a single string as a list of one, as Docker does.
fn deserialize_words<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum WordList {
        One(String),
        Many(Vec<String>),
    }
    Ok(Option::deserialize(deserializer)?.map(|words| match words {
        WordList::One(word) => vec![word],
        WordList::Many(words) => words,
    }))
}

/// Deserializes a set from the keys of a JSON object, which is how Go writes a set.
fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let map: Option<BTreeMap<String, serde::de::IgnoredAny>> = Option::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_keys().collect())
}

fn as_keys<S: Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(set.iter().map(|key| (key, BTreeMap::<(), ()>::new())))
}

/// Deserializes a count; zero or less, which means the default, becomes `None`.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number: Option<i64> = Option::deserialize(deserializer)?;
    Ok(number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0))
}

/// Durations as Go writes them: nanoseconds; zero or less means the default.
mod nanoseconds {
    use super::{Deserialize as _, Deserializer, Duration, Serializer};

    pub(super) fn deserialize<'de, D>(deserializer: D) -> Result<Option<Duration>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let number: Option<i64> = Option::deserialize(deserializer)?;
        let number = number.and_then(|number| u64::try_from(number).ok());
        Ok(number.filter(|number| *number > 0).map(Duration::from_nanos))
    }

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let nanoseconds = duration.unwrap_or_default().as_nanos();
        serializer.serialize_u64(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(document: &serde_json::Value) -> ImageConfiguration {
        ImageConfiguration::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_docker_configuration_is_read() {
        let diff_id = Digest::of(b"layer");
        let read = parse(&json!({
            "architecture": "arm64", "os": "linux", "variant": "v8", "created": "2024-01-01T00:00:00Z",
            "history": [{"created_by": "x"}],
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "config": {
                "Env": ["PATH=/bin", "EMPTY="],
                "Entrypoint": ["/init"],
                "Cmd": ["a", "b c"],
                "User": "app:staff",
                "WorkingDir": "/srv",
                "Volumes": {"/data": {}, "/log": {}},
                "ExposedPorts": {"80/tcp": {}},
                "Labels": {"a": "b"},
                "StopSignal": "SIGQUIT",
                "Healthcheck": {
                    "Test": ["CMD-SHELL", "true"], "Interval": 1_500_000_000_u64, "Timeout": 0,
                    "StartInterval": 50_000_000, "Retries": 3,
                },
                "Shell": ["/bin/ash", "-c"],
                "OnBuild": null, "AttachStdin": false, "Image": "",
            },
        }));
        assert_eq!(read.platform.to_string(), "linux/arm64/v8");
        assert_eq!(read.rootfs.diff_ids, [diff_id]);
        let config = read.config;
        assert_eq!(config.cmd.as_deref(), Some(&["a".to_owned(), "b c".to_owned()][..]));
        assert_eq!(config.volumes.iter().collect::<Vec<_>>(), ["/data", "/log"]);
        assert_eq!(config.exposed_ports.iter().collect::<Vec<_>>(), ["80/tcp"]);
        let health = config.healthcheck.clone().unwrap();
        assert_eq!(health.interval, Some(Duration::from_millis(1500)));
        assert_eq!(health.timeout, None);
        assert_eq!(health.start_interval, Some(Duration::from_millis(50)));
        assert_eq!(health.retries, Some(3));
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<ImageConfig>(written).unwrap(), config);
    }

    #[test]
    fn null_and_missing_fields_are_equivalent() {
        let nulls = json!({
            "Env": null, "Entrypoint": null, "Cmd": null, "User": null, "WorkingDir": null,
            "Volumes": null, "ExposedPorts": null, "Labels": null, "StopSignal": null,
            "Healthcheck": null, "Shell": null,
        });
        let rootfs = json!({"diff_ids": null});
        for config in [nulls, json!({}), json!(null)] {
            let read = parse(&json!({"config": config, "rootfs": rootfs}));
            assert_eq!(read.config, ImageConfig::default());
        }
        assert_eq!(parse(&json!({"rootfs": rootfs})).config, ImageConfig::default());
    }

    #[test]
    fn single_word_is_a_list_of_one() {
        let read = parse(&json!({"config": {"Cmd": "/bin/sh"}, "rootfs": {}}));
        assert_eq!(read.config.cmd, Some(vec!["/bin/sh".to_owned()]));
    }

    #[test]
    fn invalid_documents_are_rejected() {
        for text in ["", "[]", "{}", r#"{"rootfs": {"diff_ids": ["sha256:../../x"]}}"#] {
            assert!(ImageConfiguration::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
