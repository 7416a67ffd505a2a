//! Parses values as Docker's command line does: booleans, numbers, sizes, durations, lists.

use std::time::Duration;

/// Reads a boolean as Go does: `1`, `t`, `true`, `0`, `f`, `false` and the like.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Reads a whole number: decimal or, with Go's prefixes, hexadecimal, octal or binary.
pub fn integer(text: &str) -> Result<i64, String> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would accept a second sign.
    if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return Err("must be a whole number".to_owned());
    }
    let value = i64::from_str_radix(digits, radix).map_err(|_| "must be a whole number")?;
    Ok(if negative { -value } else { value })
}

/// Reads a non-negative whole number.
pub fn natural<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let value = integer(text)?;
    T::try_from(value).map_err(|_| match value {
        ..0 => "must not be negative".to_owned(),
        _ => format!("{value} is too large"),
    })
}

/// Reads a size: `512m`, `1.5g`, `2 GiB`. Units are powers of 1024, the unit of a bare number is bytes.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    let invalid = || "must be a size such as 512m or 1.5g".to_owned();
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.').ok_or_else(invalid)? + 1;
    let (number, unit) = text.split_at(end);
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(invalid()),
    };
    let (whole, fraction) = decimal(number).ok_or_else(invalid)?;
    let whole = u128::from(whole) << shift;
    let bytes = whole + ((u128::from(fraction) << shift) / u128::from(FRACTION));
    i64::try_from(bytes).map(i64::cast_unsigned).map_err(|_| "the size is too large".to_owned())
}

/// Denominator of the fraction that [`decimal`] returns.
const FRACTION: u64 = 1_000_000_000;

/// Reads a decimal number and returns its whole part and billionths.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Sizes, durations and CPU counts need no digits beyond billionths.
    let billionths = format!("{:0<9}", &fraction[..fraction.len().min(9)]).parse().ok()?;
    Some((whole, billionths))
}

/// Minimum number of CPUs, in billionths: the kernel's minimum quota is 1 ms per period of 100 ms.
const MIN_NANO_CPUS: u64 = FRACTION / 100;

/// Reads a number of CPUs, `1.5` or `3/2`, in billionths of a CPU.
pub fn nano_cpus(text: &str) -> Result<u64, String> {
    let invalid = || "must be a number of CPUs such as 1.5".to_owned();
    let (number, divisor) = text.split_once('/').unwrap_or((text, "1"));
    let (whole, fraction) = decimal(number).ok_or_else(invalid)?;
    let divisor: u64 = divisor.parse().map_err(|_| invalid())?;
    let nano = whole.checked_mul(FRACTION).and_then(|nano| nano.checked_add(fraction));
    let nano = nano.and_then(|nano| nano.checked_div(divisor)).ok_or_else(invalid)?;
    // As in Docker. The quota would be zero, which runtimes take for no limit.
    if nano < MIN_NANO_CPUS && number.contains(|digit| ('1'..='9').contains(&digit)) {
        return Err("must be 0.01 or more".to_owned());
    }
    i64::try_from(nano).map(i64::cast_unsigned).map_err(|_| invalid())
}

/// Reads a duration: `90s`, `1m30s`, `500ms`. Every number except 0 needs a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || "must be a duration with a unit, such as 10s, 500ms or 1m30s".to_owned();
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.starts_with('-') {
        return Err("a duration cannot be negative".to_owned());
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut nanoseconds: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60 * 1_000_000_000,
            "h" => 3600 * 1_000_000_000,
            _ => return Err(invalid()),
        };
        let (whole, fraction) = decimal(number).ok_or_else(invalid)?;
        let unit = u128::from(unit);
        nanoseconds += u128::from(whole) * unit;
        nanoseconds += u128::from(fraction) * unit / u128::from(FRACTION);
        rest = after;
    }
    // A Go duration has 63 bits of nanoseconds: 292 years.
    let nanoseconds = i64::try_from(nanoseconds).map_err(|_| "the duration is too long")?;
    Ok(Duration::from_nanos(nanoseconds.cast_unsigned()))
}

/// Splits a line of comma-separated values; a field in quotation marks may contain commas.
pub fn csv(line: &str) -> Result<Vec<String>, String> {
    let invalid = || "a quotation mark is misplaced or not closed".to_owned();
    if line.contains(['\n', '\r']) {
        return Err("must be one line".to_owned());
    }
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let mut field = String::new();
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted;
            loop {
                let (text, after) = rest.split_once('"').ok_or_else(invalid)?;
                field += text;
                rest = after;
                // `""` in a quoted field is a literal quotation mark.
                let Some(after) = rest.strip_prefix('"') else { break };
                field.push('"');
                rest = after;
            }
        } else {
            let (text, after) = rest.split_at(rest.find([',', '"']).unwrap_or(rest.len()));
            field += text;
            rest = after;
        }
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(fields),
            None => return Err(invalid()),
        }
    }
}

/// Splits `KEY=VALUE`; the value is empty if there is no `=`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.is_empty() {
        return Err("must be KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("7b", 7),
            ("1k", 1024),
            ("1KB", 1024),
            ("1.5 MiB", 3 << 19),
            (".5g", 1 << 29),
            ("2P", 2 << 50),
            ("1.", 1),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "-1", "k", "1x", "1kx", "1 k b", "1..5", "1.2.3", "9999999999p", "1e3", "."]
        {
            assert!(size_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_need_units() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+1s", 1_000_000_000),
            ("1h2m3.5s", 3_723_500_000_000),
            ("500ms", 500_000_000),
            ("1µs1ns", 1_001),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "10", "s", "1 s", "-1s", "1d", "1.s.", "99999999h", "+"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus_are_counted_in_billionths() {
        assert_eq!(nano_cpus("1.5"), Ok(1_500_000_000));
        assert_eq!(nano_cpus("3/2"), Ok(1_500_000_000));
        assert_eq!((nano_cpus("0.01"), nano_cpus("0")), (Ok(10_000_000), Ok(0)));
        for text in [
            "",
            "x",
            "-1",
            "1/0",
            "1/",
            "99999999999999999999",
            "/2",
            "0.009",
            "1/1000",
            "0.0000000001",
        ] {
            assert!(nano_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn integers_accept_the_prefixes_of_go() {
        for (text, value) in
            [("-5", -5), ("+5", 5), ("0x10", 16), ("010", 8), ("0b11", 3), ("0", 0)]
        {
            assert_eq!(integer(text), Ok(value), "{text}");
        }
        for text in ["", "-", "--1", "+-1", "1.0", "08", "0x", "99999999999999999999", "é"] {
            assert!(integer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quoted_fields_can_contain_commas() {
        assert_eq!(csv("a,\"b,\"\"c\",").unwrap(), ["a", "b,\"c", ""]);
        for text in ["a\"b", "\"a", "\"a\"b", "a\nb"] {
            assert!(csv(text).is_err(), "{text}");
        }
    }
}
