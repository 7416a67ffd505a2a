//! Properties of all patterns, including random and hostile ones.

use proptest::prelude::*;

use super::literal::LiteralRequirements;
use super::translate::{MatchExtent, TextCharset, compile};
use super::{Pattern, PatternErrorKind, syntax};

/// Patterns composed of pieces of the syntax, most of them valid.
fn patterns() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "ab",
        "é",
        "/",
        r"\.",
        ".",
        ".*",
        "^",
        "$",
        "|",
        "(",
        ")",
        "(?:",
        "(?i)",
        "(?s)",
        "*",
        "+",
        "?",
        "{2}",
        "{0,3}",
        "{1,}",
        "[ab]",
        "[^a]",
        r"\b",
        r"\d",
        r"\pL",
        r"\Qa.\E",
        r"\A",
        r"\z",
        "(?m)",
        "[[:alpha:]]",
        "{",
        r"\",
        "[",
        "]",
    ]);
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec!["a", "b", "ab", "é", "/", ".", "\n", "A", "1", " ", "K"]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn arbitrary_string_is_rejected_or_matched_without_panic(pattern: String, text: String) {
        check(&pattern, &text)?;
    }

    #[test]
    fn arbitrary_syntax_is_rejected_or_matched_without_panic(
        pattern in patterns(),
        text in texts(),
    ) {
        check(&pattern, &text)?;
    }

    #[test]
    fn literal_comparison_never_changes_the_result(pattern in patterns(), text in texts()) {
        if let Ok(pattern) = Pattern::new(pattern) {
            prop_assert_eq!(pattern.is_match(&text), pattern.regex_matches(&text, MatchExtent::Part));
        }
    }

    #[test]
    fn simple_requirements_match_those_of_the_syntax_tree(pattern in patterns(), text in texts()) {
        let mut kept = String::new();
        if let Some(simple) = LiteralRequirements::of_simple(&pattern, &mut kept, 0) {
            let ast = syntax::parse(&pattern).expect("what is simple is valid");
            let requirements = LiteralRequirements::new(&ast);
            prop_assert_eq!(simple.complete, requirements.complete);
            prop_assert_eq!(simple.exact, requirements.exact);
            if let Some(whole) = simple.whole_text(&kept) {
                let regex = compile(&ast, TextCharset::Any, MatchExtent::Whole);
                prop_assert_eq!(regex.is_match(&text), text == whole);
            }
            prop_assert_eq!(simple.are_met(&kept, &text), requirements.are_met(ast.literals(), &text));
        }
    }

    #[test]
    fn ascii_and_unicode_compilations_agree_on_ascii(pattern in patterns(), text in texts()) {
        if let Ok(ast) = syntax::parse(&pattern) && text.is_ascii() {
            for extent in [MatchExtent::Part, MatchExtent::Whole] {
                let [ascii, any] = [TextCharset::Ascii, TextCharset::Any].map(|texts| compile(&ast, texts, extent));
                prop_assert_eq!(ascii.is_match(&text), any.is_match(&text));
            }
        }
    }

    #[test]
    fn whole_match_equals_a_match_of_the_anchored_pattern(pattern in patterns(), text in texts()) {
        if let Ok(anchored) = Pattern::new(format!(r"\A(?:{pattern})\z"))
            && let Ok(pattern) = Pattern::new(pattern)
        {
            prop_assert_eq!(pattern.is_full_match(&text), anchored.is_match(&text));
        }
    }

    #[test]
    fn quoted_text_matches_texts_that_contain_it(needle in texts(), text in texts()) {
        let pattern = Pattern::new(format!(r"\Q{needle}\E")).unwrap();
        prop_assert_eq!(pattern.is_match(&text), text.contains(&needle));
    }
}

fn check(pattern: &str, text: &str) -> Result<(), TestCaseError> {
    match Pattern::new(pattern) {
        Ok(compiled) => {
            // A whole match is a match.
            prop_assert!(compiled.is_match(text) || !compiled.is_full_match(text));
            let ast = syntax::parse(pattern).unwrap();
            prop_assert!(ast.dots_in_words().all(|dot| pattern[dot..].starts_with('.')));
            for construct in ast.constructs() {
                prop_assert!(pattern.get(construct.span.clone()).is_some());
            }
        }
        Err(error) => {
            let shown = pattern.get(error.span());
            prop_assert!(shown.is_some());
            prop_assert!(error.fragment().is_empty() || shown == Some(error.fragment()));
        }
    }
    Ok(())
}

fn parse_error_kind(pattern: &str) -> PatternErrorKind {
    Pattern::new(pattern).expect_err("should be refused").kind()
}

#[test]
fn huge_patterns_are_checked_in_linear_time() {
    let repeat = |piece: &str, count| str::repeat(piece, count);
    assert_eq!(parse_error_kind(&repeat("(", 100_000)), PatternErrorKind::MissingParenthesis);
    assert_eq!(parse_error_kind(&repeat("[[:", 300_000)), PatternErrorKind::MissingBracket);
    assert_eq!(parse_error_kind(&repeat("[", 1_000_000)), PatternErrorKind::MissingBracket);
    assert_eq!(parse_error_kind(&repeat("(?<", 300_000)), PatternErrorKind::NamedCapture);
    assert_eq!(parse_error_kind(&repeat(r"\p{", 300_000)), PatternErrorKind::CharacterRange);
    assert_eq!(parse_error_kind("a{1000}{1000}"), PatternErrorKind::NestedRepetition);
    for (pattern, text) in [
        (repeat("{", 1_000_000), repeat("{", 1_000_000)),
        (repeat("{1", 500_000), repeat("{1", 500_000)),
        (repeat(r"\Q", 500_000), repeat(r"\Q", 499_999)),
        (repeat("a", 1_000_000), repeat("a", 1_000_000)),
        (format!("{}a{}", repeat("(?:", 200_000), repeat(")", 200_000)), "a".into()),
        (repeat("a*", 100_000) + "$", "a".into()),
        (repeat("a|", 200_000), String::new()),
    ] {
        let pattern = Pattern::new(pattern).expect("accepted");
        assert!(pattern.is_match(&text), "{:.20}", pattern.as_str());
    }
}

#[test]
fn text_without_ascii_has_word_boundaries_between_characters_only() {
    for (pattern, text, expected) in [
        (r"\W|\B", "aéa", true),
        (r"\B|é", "aéa", true),
        (r"[^a]|\B", "aéa", true),
        (r"(?:\B|é)+", "aéa", true),
        (r"\B", "aéa", false),
        (r"\B", "aéé", true),
        (r"a\B", "aé", false),
        (r"é\Bé", "éé", true),
        (r"^\B$", "é", false),
        (r"\B", "", true),
    ] {
        assert_eq!(Pattern::new(pattern).unwrap().is_match(text), expected, "{pattern} {text}");
    }
}

#[test]
fn largest_patterns_match_within_their_limits() {
    let deep = |levels| format!("{}ab{}", "(".repeat(levels), ")".repeat(levels));
    assert!(Pattern::new(deep(999)).unwrap().is_full_match("ab"));
    assert_eq!(parse_error_kind(&deep(1000)), PatternErrorKind::TooDeep);

    let wide = |count| format!("^(?:{}){{1000}}$", "[ab]".repeat(count));
    assert!(!Pattern::new(wide(3355)).unwrap().is_match(&"ab".repeat(20)));
    assert_eq!(parse_error_kind(&wide(3356)), PatternErrorKind::TooLarge);
    // Optional parts count too.
    let optional = format!("(?:{}){{0,1000}}", "[ab]".repeat(3400));
    assert_eq!(parse_error_kind(&optional), PatternErrorKind::TooLarge);
}

#[test]
fn deepest_patterns_match_on_a_threads_stack() {
    for (open, close, levels) in [("(", ")*", 499), ("(?:a|b", ")*c", 300), ("(?:", "b?)+", 300)] {
        let source = format!("{}a{}", open.repeat(levels), close.repeat(levels));
        let pattern = Pattern::new(source).expect("accepted");
        assert!(!pattern.is_full_match("a\n"), "{open}{close}");
        assert!(!pattern.is_full_match("aé"), "{open}{close}");
    }
}

#[test]
fn product_of_nested_counts_is_limited() {
    for accepted in ["(a{1000})", "((a{100}){10})", r"\pL{500}", "((a{1000}){0}){1000}", "(a*){9}"]
    {
        assert!(Pattern::new(accepted).is_ok(), "{accepted}");
    }
    for pattern in ["a{1001}", "(a{100}){11}", "((a{10}){10}){11}", "(a{31}b){33}", "a{2,1}"] {
        assert_eq!(parse_error_kind(pattern), PatternErrorKind::RepeatCount, "{pattern}");
    }
    let pattern = Pattern::new(r"\pL{500}").unwrap();
    assert!(pattern.is_match(&"é".repeat(500)));
    assert!(!pattern.is_match(&"é".repeat(499)));
}

#[test]
fn long_texts_take_linear_time() {
    let text = "x".repeat(100_000);
    for pattern in ["(x+x+)+y", "(x*)*y", "(x|x|x)*y", "(x?){50}x{50}y", "(.*)(.*)(.*)(.*)[^x]"] {
        assert!(!Pattern::new(pattern).unwrap().is_match(&text), "{pattern}");
    }
}

#[test]
fn whole_match_requires_the_entire_text() {
    for (pattern, text, part, whole) in [
        ("foo", "foo", true, true),
        ("foo", "a foo", true, false),
        ("a|ab", "ab", true, true),
        (".*", "a\nb", true, false),
        ("^a", "ab", true, false),
        ("b$", "ab", true, false),
        ("", "a", true, false),
        ("", "", true, true),
        ("^b$", "b", true, true),
        ("^b", "bc", true, false),
        ("/bin/.*", "/bin/sh", true, true),
    ] {
        let pattern = Pattern::new(pattern).unwrap();
        assert_eq!(pattern.is_match(text), part, "{pattern} {text}");
        assert_eq!(pattern.is_full_match(text), whole, "{pattern} {text}");
    }
}

#[test]
fn patterns_are_shared_between_threads() {
    let pattern = Pattern::new("^[a-z]+$").unwrap();
    let answers = std::thread::scope(|scope| {
        [0, 1].map(|_| scope.spawn(|| pattern.clone().is_match("abc"))).map(|t| t.join().unwrap())
    });
    assert_eq!(answers, [true, true]);
    assert_eq!(format!("{pattern} {pattern:?}"), r#"^[a-z]+$ Pattern("^[a-z]+$")"#);
}
