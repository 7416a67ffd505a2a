//! Unicode data: the members of `\p` classes.
//!
//! The tables are those of `regex-syntax`, asked for when a pattern first needs them.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::syntax::property::{NAMES, Property};

/// Returns the members of a property.
pub(super) fn members(property: Property) -> &'static ClassUnicode {
    static TABLES: [OnceLock<ClassUnicode>; NAMES.len()] = [const { OnceLock::new() }; NAMES.len()];
    TABLES[property.index()].get_or_init(|| load(property.query()))
}

fn load(query: &str) -> ClassUnicode {
    if query == "gc=cs" {
        // Surrogates: `regex-syntax` knows scalar values only, and no text holds others.
        return ClassUnicode::empty();
    }
    let hir =
        regex_syntax::parse(&format!(r"\p{{{query}}}")).expect("a test looks every listed name up");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => class,
        // A class of one character comes back as that character.
        HirKind::Literal(literal) => {
            let characters = str::from_utf8(&literal.0).unwrap_or_default().chars();
            ClassUnicode::new(characters.map(|c| ClassUnicodeRange::new(c, c)))
        }
        _ => ClassUnicode::empty(),
    }
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
            assert_eq!(members.ranges().is_empty(), *query == "gc=cs", "{name}");
        }
    }
}
