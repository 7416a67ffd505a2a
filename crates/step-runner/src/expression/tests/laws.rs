//! Properties of expressions for any text, and limits.

use std::sync::Arc;

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Returns a strategy for texts that come close to expressions.
fn near_expressions() -> impl Strategy<Value = String> {
    let words = [
        "${{",
        "\\${{",
        "}}",
        "env",
        ".",
        "HOME",
        "inputs",
        "arr",
        "st",
        "steps.one.outputs",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "a:",
        ",",
        "0",
        "1.5e3",
        "'",
        "\"",
        "\\",
        "\\u00e9",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "==",
        "<",
        "&&",
        "||",
        "=",
        "true",
        "null",
        "str(",
        "success()",
        "if",
        " ",
        "\n",
        "é",
        "$",
        "inputs.b",
        "'x'",
        "\"${{ 1 }}\"",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..24).prop_map(|w| w.concat())
}

proptest! {
    #[test]
    fn arbitrary_text_is_expanded_or_rejected(text in near_expressions(), wrap: bool) {
        let text = if wrap { format!("${{{{{text}}}}}") } else { text };
        let context = context();
        if let Err(error) = expand(&text, &context) {
            prop_assert!(text.is_char_boundary(error.offset), "{text} {error:?}");
        }
        if let Err(error) = condition(&text, &context) {
            prop_assert!(text.is_char_boundary(error.offset), "{text} {error:?}");
        }
        // Text that can be expanded passes the check, except for old-style paths, which are known only with a context.
        if find_mentions(&text).is_err() && expand(&text, &context).is_ok() {
            prop_assert!(text.contains("env") || text.contains("inputs") || text.contains("steps"));
        }
        // The expanded text is the text of the value.
        if let (Ok(value), Ok((string, _))) = (expand(&text, &context), expand_text(&text, &context))
            && !text.ends_with('\n')
        {
            prop_assert_eq!(value.value.to_text(), string);
        }
    }

    #[test]
    fn text_without_expressions_is_unchanged(text in ".*") {
        prop_assume!(!is_dynamic(&text));
        prop_assert_eq!(expand(&text, &context()).unwrap(), ExprValue::String(text).into());
    }

    #[test]
    fn escaped_text_expands_to_itself(text in near_expressions()) {
        // A backslash before `${{` would become its escape character.
        prop_assume!(!text.contains("\\${{"));
        let escaped = text.replace("${{", "\\${{");
        prop_assert_eq!(expand_text(&escaped, &context()).unwrap().0, text);
    }

    #[test]
    fn concatenated_texts_expand_to_concatenated_results(
        texts in prop::collection::vec(near_expressions(), 0..4),
    ) {
        let context = context();
        let expanded: Result<Vec<_>, _> =
            texts.iter().map(|text| expand_text(text, &context).map(|(text, _)| text)).collect();
        // The `|` prevents that the end of a text and the start of the next form `${{`.
        if let Ok(expanded) = expanded {
            let joined = expand_text(&texts.join("|"), &context).unwrap().0;
            prop_assert_eq!(joined, expanded.join("|"));
        }
    }

    #[test]
    fn quoted_strings_evaluate_to_themselves(text in "[ -~é\n]{0,20}") {
        let single = text.replace('\\', "\\\\").replace('\'', "\\'");
        prop_assert_eq!(value(&format!("'{single}'")), ExprValue::String(text.clone()).to_json());
        let double = text.replace('\\', "\\\\").replace('"', "\\\"").replace("${{", "\\${{");
        prop_assert_eq!(value(&format!("\"{double}\"")), ExprValue::String(text).to_json());
    }

    #[test]
    fn arithmetic_is_floating_point(a in -1e6..1e6f64, b in -1e6..1e6f64, c in 1..1000i32) {
        let c = f64::from(c);
        let text = format!("{a} + {b} * {c} - {a} / {c} % {c}");
        prop_assert_eq!(value(&text), ExprValue::Number(a + b * c - a / c % c).to_json());
        prop_assert_eq!(value(&format!("{a} < {b}")), (a < b).to_string());
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = |open: &str, close: &str, times: usize| {
        value(&format!("{}1{}", open.repeat(times), close.repeat(times)))
    };
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("{a:", "}"),
        ("-", ""),
        ("!", ""),
        ("str(", ")"),
        ("\"${{", "}}\""),
    ] {
        assert!(!deep(open, close, 30).contains("deep"), "{open}");
        assert!(deep(open, close, 65).starts_with("nested too deeply"), "{open}");
        assert!(deep(open, close, 100_000).starts_with("nested too deeply"), "{open}");
    }
    let index = format!("inputs{}", "[inputs".repeat(100_000));
    assert!(value(&index).starts_with("nested too deeply"));

    let mut nested = ExprValue::Null;
    for _ in 0..129 {
        nested = ExprValue::Array(vec![nested]);
    }
    assert!(expand_value(&nested, &context()).is_err());
    let context = ExprContext { inputs: [("x".to_owned(), nested.into())].into(), ..context() };
    for text in
        ["${{ inputs.x }}", "${{ [inputs.x] }}", "${{ str(inputs.x) }}", "- ${{ inputs.x }}"]
    {
        let error = expand(text, &context).unwrap_err();
        assert_eq!(error.kind, ExpressionErrorKind::TooDeep, "{text}");
    }
    assert!(expand("${{ inputs.x[0] }}", &context).is_ok());
}

#[test]
fn result_size_is_limited() {
    let large = ExprValue::String("x".repeat(1 << 20));
    let list = ExprValue::Array(vec![ExprValue::Null; 100_000]);
    let mut context = context();
    Arc::make_mut(&mut context.env).insert("LARGE".to_owned(), "x".repeat(1 << 20));
    context.inputs.insert("large".to_owned(), large.into());
    context.inputs.insert("list".to_owned(), list.into());
    for once in ["inputs.large", "env.LARGE", "str(env.LARGE)", "inputs.list"] {
        let items = vec![once; 20].join(",");
        let text = format!("${{{{ [{items}] }}}}");
        assert_eq!(expand(&text, &context).unwrap_err().kind, ExpressionErrorKind::TooLarge);
        let text = format!("${{{{ {once} }}}}").repeat(20);
        assert_eq!(expand(&text, &context).unwrap_err().kind, ExpressionErrorKind::TooLarge);
        let equal = vec![format!("{once} == {once}"); 20].join(" && ");
        assert_eq!(condition(&equal, &context).unwrap_err().kind, ExpressionErrorKind::TooLarge);
        // Access without a copy costs nothing.
        let looked_at = vec![format!("{once} != ''"); 9].join(" && ");
        assert_eq!(condition(&looked_at, &context), Ok(true), "{once}");
    }
    let sum = vec!["inputs.large"; 20].join(" + ");
    assert!(value(&sum).contains("not found"));
    let sum = format!("${{{{ {sum} }}}}");
    assert_eq!(expand(&sum, &context).unwrap_err().kind, ExpressionErrorKind::TooLarge);
}

#[test]
fn long_texts_take_linear_time() {
    let context = context();
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    for text in [
        "${{ env.HOME }} ".repeat(10_000),
        format!("${{{{ 0{} }}}}", " + 1".repeat(40_000)),
        format!("${{{{ ''{} }}}}", " + 'x'".repeat(20_000)),
        format!("${{{{ false{} }}}}", " || inputs.f".repeat(20_000)),
        format!("${{{{ [{}] }}}}", "1,".repeat(20_000)),
        format!("${{{{ {{}}{} }}}}", ".a".repeat(40_000)),
        format!("${{{{ inputs{} }}}}", ".a-b".repeat(40_000)),
        format!("${{{{ \"{}\" }}}}", "${{ 1 }}".repeat(10_000)),
        format!("${{{{ '{}' }}}}", "${{".repeat(40_000)),
        "${{".repeat(40_000),
        "\\${{".repeat(40_000),
        " ".repeat(200_000) + "${{" + &" ".repeat(200_000) + "1}}",
    ] {
        let _ = expand(&text, &context);
        let _ = condition(&text, &context);
        let _ = find_mentions(&text);
    }
    // About a second without optimization; minutes if any text took quadratic time.
    assert!(spent() - before < 30, "{}", spent() - before);
}
