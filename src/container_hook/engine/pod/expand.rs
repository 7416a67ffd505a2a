//! `$(NAME)` in values, commands and arguments, as Kubernetes has it.

/// Replaces each `$(NAME)` by what is found for the name, and `$$` by `$`; what nothing is found for
/// stays as it is.
pub(super) fn expand(text: &str, find: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        match rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((name, after)) => {
                out.push_str(&find(name).unwrap_or_else(|| format!("$({name})")));
                rest = after;
            }
            None => out.push('$'),
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_as_kubernetes_does() {
        let find = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("x$(A)y$(A)", "x1y1"),
            ("$$(A) $$$(A) $$$$(A)", "$(A) $1 $$(A)"),
            ("$(B) $A ${A} $(A", "$(B) $A ${A} $(A"),
            ("$()", "$()"),
            ("cost: 5$", "cost: 5$"),
            ("", ""),
        ] {
            assert_eq!(expand(text, find), expected, "{text}");
        }
    }
}
