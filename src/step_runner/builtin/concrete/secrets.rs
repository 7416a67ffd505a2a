//! What is secret in the configuration of a job.

use super::config::{Config, Descriptor};

/// Words in names of variables and headers whose values are secret.
const SECRET_NAMES: [&str; 7] =
    ["key", "secret", "token", "password", "credential", "signature", "authorization"];

/// Returns all secrets, to be masked in the log.
pub(super) fn secrets(config: &Config) -> Vec<String> {
    let mut secrets = vec![config.token.clone()];
    secrets.extend(config.artifact_extract.iter().map(|artifact| artifact.token.clone()));
    secrets.extend(user_info(&config.get_sources.repo_url));
    for [url, replaced] in &config.get_sources.instead_ofs {
        secrets.extend(user_info(url));
        secrets.extend(user_info(replaced));
    }
    let restored = config.cache_extract.iter().flat_map(|cache| &cache.sources);
    let restored = restored.flat_map(|source| [&source.descriptor, &source.alternate_descriptor]);
    let stored = config.cache_archive.iter().map(|cache| &cache.descriptor);
    restored.chain(stored).for_each(|descriptor| of_store(descriptor, &mut secrets));
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

fn of_store(store: &Descriptor, secrets: &mut Vec<String>) {
    for url in [&store.url, &store.head_url] {
        secrets.extend(user_info(url));
        // Who has it may read or write the object.
        secrets.extend(url.split_once('?').map(|(_, query)| query.to_owned()));
    }
    let is_secret = |name: &str| {
        let name = name.to_lowercase();
        SECRET_NAMES.iter().any(|word| name.contains(word))
    };
    let values = store.env.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
    secrets.extend(values.cloned());
    let headers = store.headers.iter().filter(|(name, _)| is_secret(name));
    secrets.extend(headers.flat_map(|(_, values)| values.clone()));
}

/// Returns the password in a URL, and the user with it.
fn user_info(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, _) = authority.rsplit_once('@')?;
    Some(user.split_once(':').map_or(user, |(_, password)| password).to_owned())
}

/// Returns a URL without user and password.
pub(super) fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_urls_are_told_from_paths() {
        for (url, user, without) in [
            ("https://x:tok@h:1/p?a@b", Some("tok"), "https://h:1/p?a@b"),
            ("https://tok@h", Some("tok"), "https://h"),
            ("https://a:b@c@h/", Some("b@c"), "https://h/"),
            ("https://h/p@q", None, "https://h/p@q"),
            ("git@h:p", None, "git@h:p"),
            ("/a/b", None, "/a/b"),
        ] {
            assert_eq!(user_info(url).as_deref(), user, "{url}");
            assert_eq!(without_user(url), without);
        }
    }

    #[test]
    fn everything_that_gives_access_is_secret() {
        let text = serde_json::json!({
            "token": "job", "artifact_extract": [{"token": "other"}],
            "get_sources": {"repo_url": "https://a:b@h/p", "instead_ofs": [["https://c:d@h", "git@h:"]]},
            "cache_extract": [{"sources": [{
                "descriptor": {"url": "https://s/o?X-Sig=e", "env": {"AWS_SECRET_ACCESS_KEY": "f", "AWS_REGION": "eu"}},
                "alternate_descriptor": {"head_url": "https://s/o?g"},
            }]}],
            "cache_archive": [{"descriptor": {"headers": {"X-Token": ["h"], "Content-Type": ["zip"]}}}],
        });
        let config = Config::parse(&text.to_string()).unwrap();
        let found = secrets(&config);
        assert_eq!(found, ["job", "other", "b", "d", "X-Sig=e", "f", "g", "h"]);
    }
}
