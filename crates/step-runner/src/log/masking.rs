//! Secrets to mask in logs, and the encoded forms in which they may appear.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Prefixes of GitLab tokens that are always masked.
pub const BUILT_IN_PREFIXES: [&str; 1] = ["glpat-"];

/// Prefixes of other GitLab tokens, which are masked too unless a job restricts masking: like GitLab's
/// runner while its `FF_MASK_ALL_DEFAULT_TOKENS` is on, the default.
pub const OTHER_PREFIXES: [&str; 13] = [
    "gloas-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glrtr-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glsoat-",
    "glffct-",
    "_gitlab_session=",
    "gltok-",
];

/// Secrets to mask in the output of a job.
///
/// The values of `private_token`, `X-Amz-Signature` and similar URL parameters, and tokens that start with
/// `glpat-`, are always masked; other tokens of GitLab, by default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Masking {
    /// Texts to mask, byte for byte, without surrounding white space.
    pub phrases: Vec<String>,
    /// Texts to mask case-insensitively, and with line breaks or terminal escape sequences between
    /// their characters. Texts shorter than eight bytes are ignored.
    pub loose_phrases: Vec<String>,
    /// Prefixes after which a token is masked; the prefix itself is not.
    pub token_prefixes: Vec<String>,
    /// If set, personal access tokens (`glpat-`) are the only kind of GitLab tokens that are
    /// masked.
    pub only_personal_tokens: bool,
}

impl Masking {
    /// Adds a secret in each form of [`secret_forms`] and [`loose_forms`].
    pub fn add_secret(&mut self, secret: &str) {
        self.phrases.extend(secret_forms(secret));
        self.loose_phrases.extend(loose_forms(secret));
    }
}

impl std::fmt::Debug for Masking {
    /// Formats the number of phrases, but no phrase.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masking")
            .field("phrases", &self.phrases.len())
            .field("loose_phrases", &self.loose_phrases.len())
            .field("token_prefixes", &self.token_prefixes)
            .field("only_personal_tokens", &self.only_personal_tokens)
            .finish()
    }
}

/// Minimum length of a secret that is also masked in encoded forms: those of shorter ones would
/// match too often by chance.
const MIN_BYTES: usize = 8;

/// Maximum length of a secret that is also masked in encoded forms. Longer ones are masked verbatim
/// and by lines, as programs print them, because each form costs memory.
const MAX_BYTES: usize = 4096;

/// Minimum length of a line of a secret that is also masked alone, if it contains no white space: a
/// line of a PEM file, which may be printed with a prefix, but not `kind: Config`.
const MIN_LINE_BYTES: usize = 24;

/// Minimum length of a form that is masked case-insensitively and across line breaks: shorter ones
/// occur by chance.
pub const MIN_LOOSE_BYTES: usize = 8;

/// Maximum length of a secret that is masked as hexadecimal with separators.
const MAX_SEPARATED_BYTES: usize = 256;

/// Returns the forms of a secret to mask: the secret itself, its encodings, and its long lines.
///
/// A secret of 8 to 4096 bytes is masked as base64, at any offset of the encoded data; as part of a
/// URL or a form; in a JSON string; and as shells quote it in traces. For line breaks and other
/// case, see [`loose_forms`].
pub fn secret_forms(secret: &str) -> Vec<String> {
    let secret = secret.trim();
    let mut forms = vec![secret.to_owned()];
    if (MIN_BYTES..=MAX_BYTES).contains(&secret.len()) {
        add_base64(secret.as_bytes(), &mut forms);
        add_percent(secret, &mut forms);
        add_json(secret, &mut forms);
        forms.push(secret.replace('\'', r"'\''"));
    }
    add_lines(secret, &mut forms);
    remove_duplicates(forms)
}

/// Returns the forms of a secret of 8 bytes or more that are masked case-insensitively, and with
/// line breaks and terminal escape sequences between any characters.
///
/// These forms are the secret itself and its long lines; up to 4096 bytes, base64 and hexadecimal
/// without separators; and, up to 256 bytes, hexadecimal with `:`, `-`, a space or `\x` between the
/// bytes.
pub fn loose_forms(secret: &str) -> Vec<String> {
    let secret = secret.trim();
    if secret.len() < MIN_BYTES {
        return Vec::new();
    }
    let mut forms = vec![secret.to_owned()];
    if secret.len() <= MAX_BYTES {
        add_base64(secret.as_bytes(), &mut forms);
        forms.push(hex(secret, ""));
    }
    if secret.len() <= MAX_SEPARATED_BYTES {
        forms.extend([":", "-", " ", r"\x"].map(|separator| hex(secret, separator)));
    }
    add_lines(secret, &mut forms);
    remove_duplicates(forms)
}

fn add_lines(secret: &str, forms: &mut Vec<String>) {
    let lines = secret.lines().map(str::trim);
    let telling = |line: &&str| line.len() >= MIN_LINE_BYTES && !line.contains(char::is_whitespace);
    forms.extend(lines.filter(telling).map(str::to_owned));
}

fn remove_duplicates(mut forms: Vec<String>) -> Vec<String> {
    forms.sort_unstable();
    forms.dedup();
    forms.retain(|form| !form.is_empty());
    forms
}

fn hex(secret: &str, separator: &str) -> String {
    let bytes: Vec<_> = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(separator)
}

fn add_base64(secret: &[u8], forms: &mut Vec<String>) {
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        // Unpadded encoding of the secret alone: its last character encodes fewer than six bits.
        forms.push(engine.encode(secret));
        for before in 0..3 {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(secret);
            let encoded = engine.encode(&bytes);
            // A character is six bits; characters at the ends share bits with the surrounding data.
            let first = (before * 8).div_ceil(6);
            let end = bytes.len() * 8 / 6;
            forms.push(encoded[first..end].to_owned());
        }
    }
}

fn add_percent(secret: &str, forms: &mut Vec<String>) {
    let encode = |keep: &[u8], hex: &[u8; 16]| {
        let mut encoded = String::new();
        for byte in secret.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                let digits = [byte >> 4, byte & 15].map(|digit| hex[usize::from(digit)]);
                encoded.push('%');
                encoded.extend(digits.map(char::from));
            }
        }
        encoded
    };
    const UPPER: &[u8; 16] = b"0123456789ABCDEF";
    let strict = encode(b"", UPPER);
    // HTML forms encode a space as `+`; Python does not encode `/`, JavaScript not `!'()*`.
    forms.push(strict.replace("%20", "+"));
    forms.push(strict);
    forms.push(encode(b"/", UPPER));
    forms.push(encode(b"!'()*", UPPER));
    forms.push(encode(b"", b"0123456789abcdef"));
}

fn add_json(secret: &str, forms: &mut Vec<String>) {
    let quoted = serde_json::Value::from(secret).to_string();
    let plain = &quoted[1..quoted.len() - 1];
    let escape = |escaped: fn(char) -> bool| {
        let mut text = String::new();
        for c in plain.chars() {
            if escaped(c) {
                let units = &mut [0; 2];
                for unit in c.encode_utf16(units) {
                    text += &format!("\\u{unit:04x}");
                }
            } else {
                text.push(c);
            }
        }
        text
    };
    // Python escapes all non-ASCII characters; Go escapes characters with a meaning in HTML.
    forms.push(escape(|c| !c.is_ascii()));
    forms.push(escape(|c| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}')));
    forms.push(plain.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_secret_has_one_form() {
        assert_eq!(secret_forms(" a\"b c/d\n"), ["a\"b c/d"]);
        assert_eq!(secret_forms(" \n"), [""; 0]);
    }

    #[test]
    fn loose_forms_include_hex_and_base64_and_are_not_short() {
        let forms = loose_forms("a-Secret");
        for form in [
            "a-Secret",
            "YS1TZWNyZXQ",
            "612d536563726574",
            "61:2d:53:65:63:72:65:74",
            "61-2d-53-65-63-72-65-74",
            "61 2d 53 65 63 72 65 74",
            r"61\x2d\x53\x65\x63\x72\x65\x74",
        ] {
            assert!(forms.iter().any(|known| known == form), "{form}: {forms:#?}");
        }
        assert!(forms.iter().all(|form| form.len() >= MIN_LOOSE_BYTES));
        assert_eq!(loose_forms("a-Short"), [""; 0]);
        assert!(!loose_forms(&"x".repeat(257)).iter().any(|form| form.contains(':')));
    }

    #[test]
    fn base64_of_surrounding_text_contains_a_form_of_the_secret() {
        let secret = "p?ss>wörd~~";
        let forms = secret_forms(secret);
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            for (before, after) in
                (0..7).flat_map(|before| (0..4).map(move |after| (before, after)))
            {
                let text = format!("{}{secret}{}", &"u_: =(>"[..before], &">n2!"[..after]);
                let encoded = engine.encode(&text);
                let covered = forms.iter().filter(|form| encoded.contains(form.as_str()));
                let covered = covered.map(String::len).max().unwrap_or(0);
                assert!(covered >= secret.len() * 8 / 6 - 1, "{text:?} as {encoded:?}: {covered}");
            }
        }
    }

    #[test]
    fn url_json_and_shell_encodings_are_forms() {
        let forms = secret_forms("a/b c\"d<é>'e😀");
        for form in [
            "a/b c\"d<é>'e😀",
            "a%2Fb%20c%22d%3C%C3%A9%3E%27e%F0%9F%98%80",
            "a%2fb%20c%22d%3c%c3%a9%3e%27e%f0%9f%98%80",
            "a%2Fb+c%22d%3C%C3%A9%3E%27e%F0%9F%98%80",
            "a/b%20c%22d%3C%C3%A9%3E%27e%F0%9F%98%80",
            "a%2Fb%20c%22d%3C%C3%A9%3E'e%F0%9F%98%80",
            r#"a/b c\"d<é>'e😀"#,
            r#"a/b c\"d\u003cé\u003e'e😀"#,
            r#"a/b c\"d<\u00e9>'e\ud83d\ude00"#,
            r#"a/b c"d<é>'\''e😀"#,
        ] {
            assert!(forms.iter().any(|known| known == form), "{form}: {forms:#?}");
        }
    }

    #[test]
    fn key_lines_are_secrets_but_configuration_lines_are_not() {
        let body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC".repeat(2);
        let forms = secret_forms(&format!("-----BEGIN KEY-----\r\n{body}\r\n-----END KEY-----"));
        assert!(forms.contains(&body));
        assert!(!forms.iter().any(|form| form == "-----BEGIN KEY-----"));
        let large =
            format!("apiVersion: v1\nkind: Config\nclusters:\n{}", " - a: b\n".repeat(1000));
        assert_eq!(secret_forms(&large), [large.trim()]);
    }
}
