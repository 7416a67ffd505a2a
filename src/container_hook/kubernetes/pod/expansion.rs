//! `$(NAME)`, which Kubernetes expands in programs and arguments, and nobody else does.

/// Returns a word of a program as Kubernetes leaves it alone.
pub(super) fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_expanded() {
        assert_eq!(literal("$(A) $$(B) $C"), "$$(A) $$$$(B) $$C");
    }
}
