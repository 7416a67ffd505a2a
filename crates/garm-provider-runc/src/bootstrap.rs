//! The bootstrap document: GARM's description of an instance to create.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_image::Secret;
use serde_json::Value;

use super::http::ProxyUrls;
use super::object::{JsonObject, JsonValueError};

/// The document on standard input of `CreateInstance`.
///
/// GARM's versions send different keys: unknown keys are ignored, and missing or null keys have their defaults.
#[derive(Clone)]
pub struct Bootstrap {
    /// Name of the instance; repeated when GARM retries a creation.
    pub name: String,
    /// Runner archives for all platforms.
    pub tools: Vec<RunnerArchive>,
    /// URL of the repository, organisation, enterprise or server the runner registers with.
    pub repo_url: String,
    /// Base URL to which the instance reports its status, without trailing `/status` or `/`.
    pub callback_url: String,
    /// Base URL from which the instance gets its credentials, without trailing `/`.
    pub metadata_url: String,
    /// Bearer token for both URLs.
    pub instance_token: Secret,
    /// Extra specs of the pool, not yet validated; null if there are none.
    pub extra_specs: Value,
    /// Group of the runner; empty if none.
    pub runner_group: String,
    /// CA certificates to trust, PEM; empty if none.
    pub ca_bundle: String,
    /// `amd64`, `arm64` and so on; empty for this host's.
    pub arch: String,
    /// `linux`, `unknown` or empty for Linux; others are unsupported.
    pub os_type: String,
    pub flavor: String,
    /// Image: an alias or a reference.
    pub image: String,
    /// Labels of the runner, if it registers itself.
    pub labels: Vec<String>,
    pub pool_id: String,
    /// If set, GARM has registered the runner.
    pub jit: bool,
    /// Proxies of the forge's network; all empty if none.
    pub proxy: ProxyUrls,
}

/// An archive with a runner, as offered by GARM.
#[derive(Clone, Debug)]
pub struct RunnerArchive {
    /// `linux`, `win` or `osx`.
    pub os: String,
    /// `x64`, `arm64` or `arm`.
    pub architecture: String,
    pub download_url: String,
    pub filename: String,
    /// Bearer token for the download.
    pub token: Option<Secret>,
    pub sha256: Option<String>,
}

/// Errors of parsing a bootstrap document. Messages never quote values, which may be secrets.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("standard input is not JSON")]
    Syntax(#[source] serde_json::Error),
    /// A value has the wrong type.
    #[error("standard input is not a bootstrap document of GARM")]
    Kind(#[from] JsonValueError),
    /// The CA certificates are not base64.
    #[error("invalid bootstrap document: \"/ca-cert-bundle\" is not base64")]
    CaBundle(#[source] base64::DecodeError),
}

impl Bootstrap {
    /// Parses a document.
    pub fn parse(text: &[u8]) -> Result<Self, BootstrapError> {
        // serde_json's syntax errors do not quote the document.
        let document: Value = serde_json::from_slice(text).map_err(BootstrapError::Syntax)?;
        let top = JsonObject::of(&document, String::new())?;
        let proxy = top.object("proxy_config")?;
        let bundle = STANDARD.decode(top.text("ca-cert-bundle")?);
        let bundle = bundle.map_err(BootstrapError::CaBundle)?;
        let callback_url = top.text("callback-url")?;
        let callback_url = callback_url.trim_end_matches('/');
        let callback_url = callback_url.strip_suffix("/status").unwrap_or(callback_url);
        Ok(Bootstrap {
            name: top.text("name")?,
            tools: top
                .objects("tools")?
                .iter()
                .map(RunnerArchive::read)
                .collect::<Result<_, _>>()?,
            repo_url: top.text("repo_url")?,
            callback_url: callback_url.trim_end_matches('/').to_owned(),
            metadata_url: top.text("metadata-url")?.trim_end_matches('/').to_owned(),
            instance_token: Secret::new(top.text("instance-token")?),
            extra_specs: top.get("extra_specs").cloned().unwrap_or_default(),
            runner_group: top.text("github-runner-group")?,
            ca_bundle: String::from_utf8_lossy(&bundle).into_owned(),
            arch: top.text("arch")?,
            os_type: top.text("os_type")?,
            flavor: top.text("flavor")?,
            image: top.text("image")?,
            labels: top.texts("labels")?,
            pool_id: top.text("pool_id")?,
            jit: top.flag("jit_config_enabled")?.unwrap_or_default(),
            proxy: ProxyUrls {
                http_proxy: proxy.text("http_proxy")?,
                https_proxy: proxy.text("https_proxy")?,
                no_proxy: proxy.text("no_proxy")?,
            },
        })
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Extra specs contain the token, and proxies may contain passwords.
        f.debug_struct("Bootstrap")
            .field("name", &self.name)
            .field("image", &self.image)
            .field("flavor", &self.flavor)
            .field("pool_id", &self.pool_id)
            .finish_non_exhaustive()
    }
}

impl RunnerArchive {
    fn read(tool: &JsonObject<'_>) -> Result<Self, JsonValueError> {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(RunnerArchive {
            os: tool.text("os")?,
            architecture: tool.text("architecture")?,
            download_url: tool.text("download_url")?,
            filename: tool.text("filename")?,
            token: some(tool.text("temp_download_token")?).map(Secret::new),
            sha256: some(tool.text("sha256_checksum")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use oci_hooks_files::error::chain;
    use serde_json::json;

    use super::*;

    fn recorded_bootstrap(name: &str) -> Bootstrap {
        let path = format!("{}/tests/data/calls/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let call: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        Bootstrap::parse(call["stdin"].to_string().as_bytes()).unwrap()
    }

    #[test]
    fn bootstrap_document_of_garm_is_parsed() {
        let document = recorded_bootstrap("v0.1.1-CreateInstance-jit-ca-group");
        assert_eq!(document.name, "garm-kkxdxvtsukjg");
        assert_eq!(document.callback_url, "http://127.0.0.1:9997/api/v1/callbacks");
        assert_eq!(document.metadata_url, "http://127.0.0.1:9997/api/v1/metadata");
        assert_eq!((document.arch.as_str(), document.os_type.as_str()), ("amd64", "linux"));
        assert_eq!(
            (document.image.as_str(), document.runner_group.as_str()),
            ("debian:12", "Default")
        );
        assert!(document.jit && document.labels.is_empty());
        assert!(document.ca_bundle.starts_with("-----BEGIN CERTIFICATE-----\n"));
        assert_eq!(document.extra_specs["env"]["A"], "x y");
        assert!(document.instance_token.reveal().starts_with("eyJ"));
        let tool = document.tools.iter().find(|t| t.os == "linux" && t.architecture == "x64");
        let tool = tool.unwrap();
        assert_eq!(tool.filename, "actions-runner-linux-x64-2.328.0.tar.gz");
        assert_eq!(tool.sha256.as_ref().unwrap().len(), 64);
        assert!(tool.token.is_none());
    }

    #[test]
    fn labels_and_proxies_are_read() {
        let document = recorded_bootstrap("default-version-CreateInstance-nojit");
        assert!(!document.jit);
        assert_eq!(document.labels[..2], ["nojit", "x"]);
        assert_eq!(document.proxy, ProxyUrls::default());
        let document = recorded_bootstrap("v0.1.0-CreateInstance-user-template-proxy");
        assert_eq!(document.proxy.https_proxy, "http://127.0.0.1:3128");
        assert_eq!(document.proxy.no_proxy, "localhost");
    }

    #[test]
    fn every_key_may_be_missing_null_or_unknown() {
        let path = format!(
            "{}/tests/data/calls/v0.1.0-CreateInstance-jit.json",
            env!("CARGO_MANIFEST_DIR")
        );
        let call: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let document = call["stdin"].as_object().unwrap();
        assert!(document.len() > 15);
        for key in document.keys() {
            let mut changed = document.clone();
            changed[key] = Value::Null;
            let null = Bootstrap::parse(json!(changed).to_string().as_bytes()).unwrap();
            changed.remove(key);
            changed.insert("new-key".to_owned(), json!([1]));
            let missing = Bootstrap::parse(json!(changed).to_string().as_bytes()).unwrap();
            assert_eq!(null.name, missing.name);
            assert_eq!(null.extra_specs, missing.extra_specs);
        }
        let empty = Bootstrap::parse(b"{}").unwrap();
        assert_eq!((empty.name.as_str(), empty.extra_specs, empty.jit), ("", Value::Null, false));
    }

    #[test]
    fn callback_url_is_reduced_to_its_base() {
        for (url, base) in [
            ("https://g/api/v1/callbacks", "https://g/api/v1/callbacks"),
            ("https://g/api/v1/callbacks/", "https://g/api/v1/callbacks"),
            ("https://g/api/v1/callbacks/status", "https://g/api/v1/callbacks"),
            ("https://g/api/v1/callbacks//status//", "https://g/api/v1/callbacks"),
            ("https://g/mystatus", "https://g/mystatus"),
        ] {
            let text = json!({"callback-url": url, "metadata-url": url}).to_string();
            assert_eq!(Bootstrap::parse(text.as_bytes()).unwrap().callback_url, base, "{url}");
        }
    }

    #[test]
    fn errors_name_the_position_without_the_content() {
        for (document, expected) in [
            (
                json!([]),
                "standard input is not a bootstrap document of GARM: the top-level value is not an object",
            ),
            (
                json!({"name": 1}),
                "standard input is not a bootstrap document of GARM: \"/name\" is not a string",
            ),
            (json!({"instance-token": ["hunter2"]}), "\"/instance-token\" is not a string"),
            (json!({"tools": [{}, "hunter2"]}), "\"/tools/1\" is not an object"),
            (json!({"tools": [{"os": 5}]}), "\"/tools/0/os\" is not a string"),
            (json!({"proxy_config": "hunter2"}), "\"/proxy_config\" is not an object"),
            (json!({"labels": ["a", 2]}), "\"/labels\" is not an array of strings"),
            (json!({"jit_config_enabled": "hunter2"}), "is not true or false"),
            (json!({"ca-cert-bundle": "*"}), "\"/ca-cert-bundle\" is not base64: "),
        ] {
            let error = Bootstrap::parse(document.to_string().as_bytes()).unwrap_err();
            let message = chain(&error);
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        let error = Bootstrap::parse(b"{\"instance-token\": \"hunter2\", x").unwrap_err();
        let message = chain(&error);
        assert!(message.starts_with("standard input is not JSON: "), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn debug_output_contains_no_secrets() {
        let document = recorded_bootstrap("v0.1.0-CreateInstance-jit");
        let shown = format!("{document:?}");
        assert!(!shown.contains("eyJ") && !shown.contains("IyEv"), "{shown}");
    }
}
