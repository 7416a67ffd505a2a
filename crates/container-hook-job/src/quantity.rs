//! [Quantities] of Kubernetes: `500m`, `1.5Gi`, `2e3`.
//!
//! [Quantities]: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/

/// A quantity, in billionths, the smallest unit of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const ONE: i128 = 1_000_000_000;

/// Suffixes and their factors, as powers of 10 and of 1024.
const SUFFIXES: [(&str, i32, u32); 16] = [
    ("n", -9, 0),
    ("u", -6, 0),
    ("m", -3, 0),
    ("", 0, 0),
    ("k", 3, 0),
    ("M", 6, 0),
    ("G", 9, 0),
    ("T", 12, 0),
    ("P", 15, 0),
    ("E", 18, 0),
    ("Ki", 0, 1),
    ("Mi", 0, 2),
    ("Gi", 0, 3),
    ("Ti", 0, 4),
    ("Pi", 0, 5),
    ("Ei", 0, 6),
];

impl Quantity {
    /// Reads a non-negative quantity; returns none if the text is invalid or the number too large.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('+').unwrap_or(text);
        let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
        let (number, suffix) = digits.split_at(end);
        let (power, binary) = match SUFFIXES.iter().find(|(name, ..)| *name == suffix) {
            Some((_, power, binary)) => (*power, *binary),
            None => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let mantissa = mantissa.checked_mul(1024_i128.checked_pow(binary)?)?;
        let power = power.checked_add(9)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let scale = 10_i128.checked_pow(power.unsigned_abs());
        Some(Quantity(if power >= 0 {
            mantissa.checked_mul(scale?)?
        } else {
            // Smaller numbers are rounded up to a billionth.
            scale.map_or(i128::from(mantissa > 0), |scale| ceiling(mantissa, scale))
        }))
    }

    /// Returns the quantity in billionths, for CPUs; at most `u64::MAX`.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0).unwrap_or(u64::MAX)
    }

    /// Returns the quantity as a whole number, rounded up.
    pub fn units(self) -> u64 {
        u64::try_from(ceiling(self.0, ONE)).unwrap_or(u64::MAX)
    }

    /// Returns the quantity divided by `other`, rounded up; none if `other` is 0.
    pub fn divide_by(self, other: Quantity) -> Option<i128> {
        (other.0 > 0).then(|| ceiling(self.0, other.0))
    }
}

/// Returns whether a text is a quantity; it may be negative.
pub fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').filter(|digits| !digits.starts_with('+'));
    Quantity::parse(unsigned.unwrap_or(text)).is_some()
}

fn ceiling(number: i128, by: i128) -> i128 {
    number / by + i128::from(number % by != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_like_in_kubernetes() {
        for (text, nanos) in [
            ("1", ONE),
            ("100m", ONE / 10),
            ("0.1", ONE / 10),
            (".5", ONE / 2),
            ("5.", 5 * ONE),
            ("+2", 2 * ONE),
            ("1n", 1),
            ("0.1n", 1),
            ("1u", 1000),
            ("1k", 1000 * ONE),
            ("1Ki", 1024 * ONE),
            ("1.5Gi", 1_610_612_736 * ONE),
            ("2e3", 2000 * ONE),
            ("2E-3", ONE / 500),
            ("1E", 1_000_000_000_000_000_000 * ONE),
            ("3Ei", (3_i128 << 60) * ONE),
            ("0", 0),
        ] {
            assert_eq!(Quantity::parse(text), Some(Quantity(nanos)), "{text}");
        }
        for text in [
            "", "x", "-", "1.2.3", "-+1", "1 Gi", "1gi", "1ki", "1KB", "1GB", "1K", ".", "1e",
            "1ei", "1e99", "1m5", "1,5", "Gi", "0x1",
        ] {
            assert_eq!(Quantity::parse(text), None, "{text}");
            assert!(!is_quantity(text), "{text}");
        }
        assert!(Quantity::parse("-1").is_none() && is_quantity("-1") && is_quantity("+1"));
    }

    #[test]
    fn fractions_are_rounded_up() {
        assert_eq!(Quantity::parse("1500m").unwrap().units(), 2);
        assert_eq!(Quantity::parse("1.5").unwrap().nanos(), 1_500_000_000);
        let (limit, divisor) = (Quantity::parse("1Gi").unwrap(), Quantity::parse("1M").unwrap());
        assert_eq!(limit.divide_by(divisor), Some(1074));
        assert_eq!(limit.divide_by(Quantity(0)), None);
    }
}
