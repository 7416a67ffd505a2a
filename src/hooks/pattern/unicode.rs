//! Unicode data: the members of `\p` classes and the characters that differ only in case.
//!
//! The tables are those of `regex-syntax`, asked for when a pattern first needs them.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::syntax::property::{NAMES, Property};

/// Inclusive ranges of code points, ascending and apart.
pub(super) type Ranges = [(u32, u32)];

/// Returns the members of a property.
pub(super) fn members(property: Property) -> &'static Ranges {
    static TABLES: [OnceLock<Vec<(u32, u32)>>; NAMES.len()] =
        [const { OnceLock::new() }; NAMES.len()];
    TABLES[property.index()].get_or_init(|| load(property.query()))
}

fn load(query: &str) -> Vec<(u32, u32)> {
    if query == "gc=cs" {
        // Surrogates: `regex-syntax` knows scalar values only, and no text holds others.
        return Vec::new();
    }
    let hir =
        regex_syntax::parse(&format!(r"\p{{{query}}}")).expect("a test looks every listed name up");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        // A class of one character comes back as that character.
        HirKind::Literal(literal) => str::from_utf8(&literal.0)
            .unwrap_or_default()
            .chars()
            .map(|c| (c.into(), c.into()))
            .collect(),
        _ => Vec::new(),
    }
}

/// Returns the characters that equal `c` if case does not count, `c` among them.
pub(super) fn case_variants(c: char) -> impl Iterator<Item = char> + Clone {
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
    class.case_fold_simple();
    let ranges: Vec<_> = class.iter().map(|range| (range.start(), range.end())).collect();
    ranges.into_iter().flat_map(|(start, end)| start..=end)
}

/// Returns the one of [`case_variants`] that stands for all.
pub(super) fn fold(c: char) -> char {
    // The lowest: for ASCII letters it is the capital, also from ſ and the Kelvin sign.
    if c.is_ascii() { c.to_ascii_uppercase() } else { case_variants(c).min().unwrap_or(c) }
}

/// Reports whether the ranges hold the code point.
pub(super) fn contains(ranges: &Ranges, point: u32) -> bool {
    let after = ranges.partition_point(|&(start, _)| start <= point);
    after > 0 && point <= ranges[after - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_property_has_members() {
        for (index, (name, query)) in NAMES.iter().enumerate() {
            let property = Property::find(name).unwrap();
            assert_eq!(property.index(), index, "{name} is listed twice");
            let members = members(property);
            assert_eq!(members.is_empty(), *query == "gc=cs", "{name}");
            assert!(members.windows(2).all(|pair| pair[0].1 < pair[1].0), "{name}");
        }
    }

    #[test]
    fn case_variants_are_those_of_simple_folding() {
        let variants = |c| case_variants(c).collect::<String>();
        assert_eq!(variants('k'), "Kk\u{212a}");
        assert_eq!(variants('ß'), "ß\u{1e9e}");
        assert_eq!(variants('İ'), "İ");
        assert_eq!(variants('1'), "1");
        for c in ['k', 'K', '\u{212a}'] {
            assert_eq!(fold(c), 'K');
        }
    }
}
