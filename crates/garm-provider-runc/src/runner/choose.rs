//! Choice of a runner archive from GARM's list, and the forge of its runner.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oci_hooks_image::Arch;
use serde::Deserialize;

use super::error::RunnerError;
use super::locate::GITEA_NAMES;
use crate::boot::Forge;
use crate::bootstrap::RunnerArchive;
use crate::http::shorten_url;

/// Returns the archive for Linux on an architecture.
pub fn choose<'a>(
    tools: &'a [RunnerArchive],
    arch: &Arch,
) -> Result<&'a RunnerArchive, RunnerError> {
    let arch = arch.to_string();
    // GitHub's name of the architecture.
    let named = if arch == "amd64" { "x64" } else { &arch };
    let suits = |tool: &&RunnerArchive| {
        tool.os == "linux"
            && [named, &*arch].contains(&&*tool.architecture)
            && !tool.download_url.is_empty()
    };
    tools.iter().find(suits).ok_or_else(|| {
        let known = tools.iter().map(|tool| format!("{}/{}", tool.os, tool.architecture));
        let known = known.collect::<Vec<_>>().join(", ");
        RunnerError::NoTool { arch: arch.clone(), known }
    })
}

/// Returns the file name of an archive.
pub fn name_of(tool: &RunnerArchive) -> String {
    if !tool.filename.is_empty() {
        return tool.filename.clone();
    }
    let url = shorten_url(&tool.download_url);
    url.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns the forge of the runner in an archive.
pub fn forge_of(tool: &RunnerArchive) -> Forge {
    let name = name_of(tool);
    match GITEA_NAMES.iter().any(|start| name.starts_with(start)) {
        true => Forge::Gitea,
        false => Forge::Github,
    }
}

/// Returns the forge of an instance, from its token, or from the archives if the token has none; none if unknown.
pub fn forge_of_instance(token: &str, tools: &[RunnerArchive]) -> Option<Forge> {
    #[derive(Deserialize)]
    struct TokenClaims {
        forge_type: Forge,
    }
    // The signature is not checked: a forger of the token could also forge the rest of the document.
    let claims = token.split('.').nth(1).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let claims = claims.and_then(|claims| serde_json::from_slice::<TokenClaims>(&claims).ok());
    claims.map(|claims| claims.forge_type).or_else(|| tools.first().map(forge_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_or_archives_determine_the_forge() {
        let token = |records: &str| format!("e30.{}.x", URL_SAFE_NO_PAD.encode(records));
        let gitea =
            RunnerArchive { filename: "act_runner-0.2.13".to_owned(), ..tool("linux", "x64", "u") };
        let github = tool("linux", "x64", "https://h/actions-runner-linux-x64-2.328.0.tar.gz");
        let (gitea, github) = ([gitea], [github]);
        for (token, tools, forge) in [
            (token(r#"{"forge_type":"gitea","exp":1}"#), &github[..], Some(Forge::Gitea)),
            (token(r#"{"forge_type":"github"}"#), &gitea[..], Some(Forge::Github)),
            (token(r#"{"forge_type":"other"}"#), &gitea[..], Some(Forge::Gitea)),
            ("no.token".to_owned(), &github[..], Some(Forge::Github)),
            (String::new(), &[][..], None),
        ] {
            assert_eq!(forge_of_instance(&token, tools), forge, "{token}");
        }
    }

    fn tool(os: &str, architecture: &str, url: &str) -> RunnerArchive {
        RunnerArchive {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            download_url: url.to_owned(),
            filename: String::new(),
            token: None,
            sha256: None,
        }
    }

    #[test]
    fn archive_is_selected_by_system_and_architecture() {
        let tools = [
            tool("win", "x64", "w"),
            tool("linux", "arm64", "a"),
            tool("linux", "x64", ""),
            tool("linux", "x64", "x"),
            tool("linux", "arm", "r"),
        ];
        for (arch, url) in [(Arch::Amd64, "x"), (Arch::ARM64, "a"), (Arch::ARM, "r")] {
            assert_eq!(choose(&tools, &arch).unwrap().download_url, url, "{arch}");
        }
        let raw = [tool("linux", "amd64", "m")];
        assert_eq!(choose(&raw, &Arch::Amd64).unwrap().download_url, "m");
    }

    #[test]
    fn missing_archive_error_lists_the_available_ones() {
        let tools = [tool("win", "x64", "w"), tool("linux", "arm64", "a")];
        let error = choose(&tools, &Arch::Amd64).unwrap_err().to_string();
        assert!(error.contains("amd64") && error.contains("win/x64, linux/arm64"), "{error}");
        let error = choose(&[], &Arch::i386).unwrap_err().to_string();
        assert!(error.contains("no runner at all"), "{error}");
    }
}
