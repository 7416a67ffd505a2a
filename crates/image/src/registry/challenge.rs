//! Parses `WWW-Authenticate` headers: the authentication that a registry asks for.

use http_auth::ChallengeRef;
use http_auth::parser::ChallengeParser;

/// Authentication scheme offered by a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// User name and password with each request.
    Basic,
    /// A token from a token server.
    Bearer {
        /// URL of the token server.
        realm: String,
        /// Name of the registry at the token server.
        service: Option<String>,
    },
}

impl Challenge {
    /// Returns the best supported scheme among the values of the header.
    pub fn choose<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let all: Vec<_> = values.flat_map(parse).collect();
        let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        bearer.or(all.first()).cloned()
    }
}

/// Parses one value, up to the first violation of the grammar.
fn parse(value: &str) -> Vec<Challenge> {
    let challenges = ChallengeParser::new(value).map_while(Result::ok);
    challenges.filter_map(|challenge| parse_known(&challenge)).collect()
}

fn parse_known(challenge: &ChallengeRef<'_>) -> Option<Challenge> {
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
    fn challenges_are_parsed_and_tokens_preferred() {
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
            // A URL has to be in quotes.
            "Bearer realm=https://a.example/t",
        ] {
            assert_eq!(choose(&[none]), None, "{none}");
        }
    }
}
