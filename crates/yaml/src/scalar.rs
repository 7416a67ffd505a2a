//! Resolution of unquoted scalars by the [core schema] of YAML 1.2: `yes` is a string, `0644` is 644.
//!
//! [core schema]: https://yaml.org/spec/1.2.2/#103-core-schema

use serde_json::Number;

use super::node::YamlValue;

/// Returns the value of an unquoted scalar.
pub fn resolve<O>(word: &str) -> YamlValue<O> {
    null(word)
        .or_else(|| boolean(word))
        .or_else(|| integer(word))
        .or_else(|| float(word))
        .unwrap_or_else(|| YamlValue::Text(word.to_owned()))
}

/// Returns the value of a scalar with a tag of the core schema, such as `int`; `None` if the tag is
/// unknown or the scalar is not of that type.
pub fn resolve_as<O>(tag: &str, word: &str) -> Option<YamlValue<O>> {
    match tag {
        "str" => Some(YamlValue::Text(word.to_owned())),
        "null" => null(word),
        "bool" => boolean(word),
        "int" => integer(word),
        "float" => integer(word).or_else(|| float(word)),
        _ => None,
    }
}

pub(super) fn null<O>(word: &str) -> Option<YamlValue<O>> {
    matches!(word, "" | "~" | "null" | "Null" | "NULL").then_some(YamlValue::Null)
}

pub(super) fn boolean<O>(word: &str) -> Option<YamlValue<O>> {
    match word {
        "true" | "True" | "TRUE" => Some(YamlValue::Bool(true)),
        "false" | "False" | "FALSE" => Some(YamlValue::Bool(false)),
        _ => None,
    }
}

fn integer<O>(word: &str) -> Option<YamlValue<O>> {
    let prefixed = |radix, prefix| {
        let digits = word.strip_prefix(prefix)?;
        digits.chars().all(|c: char| c.is_digit(radix)).then_some(())?;
        u64::from_str_radix(digits, radix).ok()
    };
    if let Some(number) = prefixed(8, "0o").or_else(|| prefixed(16, "0x")) {
        return Some(YamlValue::Number(number.into()));
    }
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number =
        word.parse::<i64>().map(Number::from).or_else(|_| word.parse::<u64>().map(Number::from));
    number.ok().map(YamlValue::Number)
}

pub(super) fn float<O>(word: &str) -> Option<YamlValue<O>> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_mantissa = all_digits(whole) && all_digits(fraction) && whole.len() + fraction.len() > 0;
    let is_exponent = exponent.is_none_or(|text| {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        !digits.is_empty() && all_digits(digits)
    });
    if !is_mantissa || !is_exponent {
        return None;
    }
    let number: f64 = word.parse().ok()?;
    // JSON does not distinguish 12e3 from 12000. Beyond 2^53 the integer would differ.
    if number.fract() == 0.0 && number.abs() < (1_u64 << 53) as f64 {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
        return Some(YamlValue::Number((number as i64).into()));
    }
    // JSON has no infinity.
    Number::from_f64(number).map(YamlValue::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::Number;

    use super::super::node::YamlValue;

    fn resolve(word: &str) -> YamlValue<()> {
        super::resolve(word)
    }

    fn number(number: impl Into<Number>) -> YamlValue<()> {
        YamlValue::Number(number.into())
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        for word in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(resolve(word), YamlValue::Null, "{word}");
        }
        for word in ["true", "True", "TRUE"] {
            assert_eq!(resolve(word), YamlValue::Bool(true), "{word}");
        }
        for (word, expected) in [
            ("0644", number(644)),
            ("0o644", number(420)),
            ("0x1F", number(31)),
            ("-7", number(-7)),
            ("+7", number(7)),
            ("18446744073709551615", number(u64::MAX)),
            ("1.0", number(1)),
            ("12e3", number(12_000)),
            (".5", YamlValue::Number(Number::from_f64(0.5).unwrap())),
            ("2.5E-1", YamlValue::Number(Number::from_f64(0.25).unwrap())),
        ] {
            assert_eq!(resolve(word), expected, "{word}");
        }
    }

    #[test]
    fn special_words_of_yaml_1_1_are_strings() {
        let words = [
            "yes",
            "on",
            "No",
            "2024-01-01",
            "1:30",
            "1_000",
            "0b1",
            "tRue",
            ".",
            "e3",
            "-",
            "0x",
            "1e",
            "--1",
            "0x-1",
            "+0o7",
        ];
        for word in words {
            assert_eq!(resolve(word), YamlValue::Text(word.to_owned()), "{word}");
        }
        // JSON has no such numbers.
        for word in [".inf", "-.INF", ".nan", "1e999"] {
            assert_eq!(resolve(word), YamlValue::Text(word.to_owned()), "{word}");
        }
    }
}
