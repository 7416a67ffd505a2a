//! Expansion of variables in texts, like `os.Expand` of Go's library.

/// Expands `$NAME` and `${NAME}` like `os.Expand`. `$$` is a dollar sign; other special parameters of
/// shells are empty.
///
/// # Errors
///
/// Fails with the error of `variable`.
pub fn expand_like_go<'t, E>(
    text: &'t str,
    mut variable: impl FnMut(&'t str) -> Result<String, E>,
) -> Result<String, E> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let special = |c: char| matches!(c, '*' | '#' | '$' | '@' | '!' | '?' | '-' | '0'..='9');
        let (name, length) = match after.strip_prefix('{') {
            // A brace without end or name is dropped.
            Some(braced) => match braced.find('}') {
                Some(end) => (&braced[..end], end + 2),
                None => ("", 1),
            },
            None if after.starts_with(special) => (&after[..1], 1),
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
                if end == 0 {
                    expanded.push('$');
                }
                (&after[..end], end)
            }
        };
        match name {
            "$" => expanded.push('$'),
            name if name.len() == 1 && name.starts_with(special) => {}
            "" => {}
            name => expanded.push_str(&variable(name)?),
        }
        rest = &after[length..];
    }
    Ok(expanded + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_go_does() {
        let value = |name: &str| match name {
            "A" => Ok("a".to_owned()),
            "bad" => Err(()),
            name => Ok(format!("<{name}>")),
        };
        for (text, expanded) in [
            ("", ""),
            ("1 $A", "1 a"),
            ("${A}b$A.", "aba."),
            ("$$A $", "$A $"),
            ("$1$?$*x", "x"),
            ("${}x ${A", "x A"),
            ("$é", "$é"),
            ("${a-b}", "<a-b>"),
        ] {
            assert_eq!(expand_like_go(text, value).as_deref(), Ok(expanded), "{text}");
        }
        assert_eq!(expand_like_go("$A$bad", value), Err(()));
    }
}
