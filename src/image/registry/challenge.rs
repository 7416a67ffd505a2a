//! `WWW-Authenticate`: how a registry wants to know who asks.

use http_auth::ChallengeRef;
use http_auth::parser::ChallengeParser;

/// A way to log in that a registry offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// Name and password with each request.
    Basic,
    /// A token from a token server.
    Bearer {
        /// The address of the token server.
        realm: String,
        /// What the token server calls the registry.
        service: Option<String>,
    },
}

impl Challenge {
    /// Returns the best of what the values of the header offer that is known here.
    pub fn choose<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let all: Vec<_> = values.flat_map(parse).collect();
        let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        bearer.or(all.first()).cloned()
    }
}

/// Reads one value, up to where it breaks the grammar if it does.
fn parse(value: &str) -> Vec<Challenge> {
    let challenges = ChallengeParser::new(value).map_while(Result::ok);
    challenges.filter_map(|challenge| known(&challenge)).collect()
}

fn known(challenge: &ChallengeRef<'_>) -> Option<Challenge> {
    let get = |name: &str| {
        let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_unescaped())
    };
    if challenge.scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    let is_bearer = challenge.scheme.eq_ignore_ascii_case("bearer");
    is_bearer.then_some(Challenge::Bearer { realm: get("realm")?, service: get("service") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        let service = service.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.to_owned(), service })
    }

    #[test]
    fn challenges_are_read_and_tokens_preferred() {
        let choose = |values: &[&str]| Challenge::choose(values.iter().copied());
        let hub = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push",error="x""#;
        let expected = bearer("https://auth.example/token", Some("registry.example"));
        assert_eq!(choose(&[hub]), expected);
        assert_eq!(choose(&["Basic realm=\"x\"", hub]), expected);
        assert_eq!(choose(&[&format!("Basic realm=\"a, b\", {hub}")]), expected);
        assert_eq!(choose(&[&format!("{hub}, Basic realm=x")]), expected);
        assert_eq!(
            choose(&["bearer REALM = \"https://a.example/t\""]),
            bearer("https://a.example/t", None)
        );
        assert_eq!(choose(&[r#"Bearer realm="a\"b""#]), bearer("a\"b", None));
        assert_eq!(choose(&["basic"]), Some(Challenge::Basic));
        for none in [
            "",
            "Negotiate",
            "Bearer service=\"x\"",
            ",,,",
            "Digest realm=\"x\", nonce=\"y\"",
            "=",
            "\"",
            "Bearer =a",
            // An address has to be in quotes.
            "Bearer realm=https://a.example/t",
        ] {
            assert_eq!(choose(&[none]), None, "{none}");
        }
    }
}
