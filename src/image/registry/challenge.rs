//! `WWW-Authenticate`: how a registry wants to know who asks.

/// A way to log in that a registry offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
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
    pub(super) fn choose<'a>(values: impl Iterator<Item = &'a str>) -> Option<Self> {
        let all: Vec<_> = values.flat_map(parse).collect();
        let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        bearer.or(all.first()).cloned()
    }
}

/// Reads one value: challenges, separated by commas like their parameters.
fn parse(value: &str) -> Vec<Challenge> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some((scheme, parameters, after)) = next(rest) {
        let get = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            found.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer")
            && let Some(realm) = get("realm")
        {
            found.push(Challenge::Bearer { realm, service: get("service") });
        }
        rest = after;
    }
    found
}

type Parameters = Vec<(String, String)>;

/// Splits off the first challenge: its scheme, its parameters, and what follows.
fn next(text: &str) -> Option<(&str, Parameters, &str)> {
    let text = text.trim_start_matches([' ', '\t', ',']);
    let (scheme, mut rest) = token(text);
    if scheme.is_empty() {
        return None;
    }
    let mut parameters = Vec::new();
    loop {
        let (key, after) = token(rest.trim_start_matches([' ', '\t', ',']));
        // A word without `=` is the next scheme.
        let Some(after) = after.trim_start().strip_prefix('=').filter(|_| !key.is_empty()) else {
            break;
        };
        let (value, after) = argument(after.trim_start());
        parameters.push((key.to_owned(), value));
        rest = after;
    }
    Some((scheme, parameters, rest))
}

fn token(text: &str) -> (&str, &str) {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c);
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// Reads a value, with quotes or without.
fn argument(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            c => value.push(c),
        }
    }
    (value, "")
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
            choose(&["bearer REALM = https://a.example/t"]),
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
        ] {
            assert_eq!(choose(&[none]), None, "{none}");
        }
    }
}
