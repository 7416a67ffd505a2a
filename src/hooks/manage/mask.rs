//! Hooks that never apply and hide others by their name.

use crate::hooks::schema::MASK_PROGRAM;
use crate::hooks::{Definition, Draft, DraftWhen, Hook, PathCheck, SchemaOptions};

/// Returns the text of a mask.
pub(super) fn text() -> Vec<u8> {
    Draft {
        hook: Hook { path: MASK_PROGRAM.to_owned(), ..Hook::default() },
        when: DraftWhen { always: Some(false), ..DraftWhen::default() },
        // Every consumer of every age knows this stage.
        stages: vec!["poststop".to_owned()],
    }
    .to_text()
    .into_bytes()
}

/// Returns whether a text is a mask, perhaps laid out anew.
pub(super) fn is_mask(text: &[u8]) -> bool {
    let options = SchemaOptions { path_check: PathCheck::Skip, ..SchemaOptions::default() };
    Definition::parse(text, options).is_ok_and(|definition| definition.is_mask())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{Consumer, LoadOptions};

    #[test]
    fn every_consumer_takes_a_mask() {
        for consumer in Consumer::ALL {
            let options = LoadOptions::for_consumer(&consumer);
            super::super::check::check("m.json".as_ref(), &text(), &options).unwrap();
        }
    }

    #[test]
    fn only_masks_are_taken_for_masks() {
        assert!(is_mask(&text()));
        assert!(is_mask(
            br#"{"version":"1.0.0","hook":{"path":"/"},"when":{"always":false},"stages":[]}"#
        ));
        assert!(!is_mask(
            br#"{"version":"1.0.0","hook":{"path":"/x"},"when":{"always":false},"stages":[]}"#
        ));
        assert!(!is_mask(b""));
    }
}
