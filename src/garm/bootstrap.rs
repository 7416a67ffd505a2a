//! What GARM says of an instance to create.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::http::Proxy;
use super::object::{KindError, Object};
use crate::image::Secret;

/// The document on standard input of `CreateInstance`.
///
/// Versions of GARM differ in what they say: keys that are not known are ignored, and those that
/// are missing or null have their defaults.
#[derive(Clone)]
#[non_exhaustive]
pub struct Bootstrap {
    /// The name of the instance; the same again when a creation is tried again.
    pub name: String,
    /// The runner's archives, of all platforms.
    pub tools: Vec<Tool>,
    /// The repository, organisation, enterprise or server the runner registers with.
    pub repo_url: String,
    /// Where the instance says how it goes, without `/status` or `/` at its end.
    pub callback_url: String,
    /// Where the instance gets its credentials, without `/` at its end.
    pub metadata_url: String,
    /// What it shows at both.
    pub instance_token: Secret,
    /// The extra specs of the pool as they are; null if there are none.
    pub extra_specs: Value,
    /// The group of the runner; empty if none.
    pub runner_group: String,
    /// Certificates to trust, PEM; empty if none.
    pub ca_bundle: String,
    /// `amd64`, `arm64` and so on.
    pub arch: String,
    /// `linux` or something that cannot be run.
    pub os_type: String,
    /// The flavor by its name.
    pub flavor: String,
    /// The image, an alias or a reference.
    pub image: String,
    /// Labels of the runner, if it is to register by itself.
    pub labels: Vec<String>,
    pub pool_id: String,
    /// Whether GARM registered the runner.
    pub jit: bool,
    /// Proxies of the forge's network; all empty if none.
    pub proxy: Proxy,
}

/// An archive of the runner.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tool {
    /// `linux`, `win` or `osx`.
    pub os: String,
    /// `x64`, `arm64` or `arm`.
    pub architecture: String,
    pub download_url: String,
    pub filename: String,
    pub token: Option<Secret>,
    pub sha256: Option<String>,
}

/// Why a document is not one of GARM's. What the document holds is not said: it may be a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    #[error("standard input is not JSON")]
    Syntax(#[source] serde_json::Error),
    /// Something in it is of another kind.
    #[error("standard input is not a bootstrap document of GARM")]
    Kind(#[from] KindError),
    /// The certificates are not written as GARM does.
    #[error("invalid bootstrap document: \"/ca-cert-bundle\" is not base64")]
    CaBundle(#[source] base64::DecodeError),
}

impl Bootstrap {
    /// Reads a document.
    pub fn parse(text: &[u8]) -> Result<Self, BootstrapError> {
        // No message about syntax has anything of the document in it.
        let document: Value = serde_json::from_slice(text).map_err(BootstrapError::Syntax)?;
        let top = Object::of(&document, String::new())?;
        let proxy = top.object("proxy_config")?;
        let bundle = STANDARD.decode(top.text("ca-cert-bundle")?);
        let bundle = bundle.map_err(BootstrapError::CaBundle)?;
        let callback_url = top.text("callback-url")?;
        let callback_url = callback_url.trim_end_matches('/');
        let callback_url = callback_url.strip_suffix("/status").unwrap_or(callback_url);
        Ok(Bootstrap {
            name: top.text("name")?,
            tools: top.objects("tools")?.iter().map(Tool::read).collect::<Result<_, _>>()?,
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
            proxy: Proxy {
                http_proxy: proxy.text("http_proxy")?,
                https_proxy: proxy.text("https_proxy")?,
                no_proxy: proxy.text("no_proxy")?,
            },
        })
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Extra specs have the token in them, and proxies may have passwords.
        f.debug_struct("Bootstrap")
            .field("name", &self.name)
            .field("image", &self.image)
            .field("flavor", &self.flavor)
            .field("pool_id", &self.pool_id)
            .finish_non_exhaustive()
    }
}

impl Tool {
    fn read(tool: &Object<'_>) -> Result<Self, KindError> {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Tool {
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
    use serde_json::json;

    use super::*;
    use crate::sys::error::chain;

    fn recorded(name: &str) -> Bootstrap {
        let path = format!("{}/tests/data/garm/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let call: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        Bootstrap::parse(call["stdin"].to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_garm_sends_is_read() {
        let document = recorded("v0.1.1-CreateInstance-jit-ca-group");
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
        let document = recorded("default-version-CreateInstance-nojit");
        assert!(!document.jit);
        assert_eq!(document.labels[..2], ["nojit", "x"]);
        assert_eq!(document.proxy, Proxy::default());
        let document = recorded("v0.1.0-CreateInstance-user-template-proxy");
        assert_eq!(document.proxy.https_proxy, "http://127.0.0.1:3128");
        assert_eq!(document.proxy.no_proxy, "localhost");
    }

    #[test]
    fn every_key_may_be_missing_or_null_or_new() {
        let path = format!(
            "{}/tests/data/garm/v0.1.0-CreateInstance-jit.json",
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
    fn the_callback_address_is_cut_to_its_base() {
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
    fn mistakes_are_named_by_their_place_and_never_by_their_content() {
        for (document, expected) in [
            (
                json!([]),
                "standard input is not a bootstrap document of GARM: \"\" is not an object",
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
    fn what_is_shown_for_debugging_has_no_secret() {
        let document = recorded("v0.1.0-CreateInstance-jit");
        let shown = format!("{document:?}");
        assert!(!shown.contains("eyJ") && !shown.contains("IyEv"), "{shown}");
    }
}
