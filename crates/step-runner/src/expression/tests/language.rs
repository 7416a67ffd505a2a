//! Tests of the language in GitLab's current documentation.

use super::*;

/// Asserts the value of each expression, as JSON, or its error.
fn assert_all(cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        assert_eq!(value(expression), *expected, "{expression}");
    }
}

#[test]
fn literals_have_json_types() {
    assert_all(&[
        ("null", "null"),
        ("true", "true"),
        (" 42 ", "42"),
        ("3.14", "3.14"),
        ("1.5e3", "1500"),
        ("2E-4", "0.0002"),
        ("[1, 'x', [null],]", r#"[1,"x",[null]]"#),
        ("[]", "[]"),
        ("{}", "{}"),
        (
            "{name: 'runner', 'a-b': 1, \"c${{inputs.i}}\": 2,}",
            r#"{"a-b":1,"c7":2,"name":"runner"}"#,
        ),
        ("{(inputs.s): {s: 1}}", r#"{"str":{"s":1}}"#),
        ("{if: 1, env: 2}", r#"{"env":2,"if":1}"#),
        ("{a: 1, a: 2}", r#"{"a":2}"#),
    ]);
}

#[test]
fn only_double_quotes_support_escapes_and_expressions() {
    assert_all(&[
        (r#""a\n\r\t\a\b\f\v\/\\\"'""#, r#""a\n\r\t\u0007\b\f\u000b/\\\"'""#),
        (r#""\u00e9\uD800x""#, "\"é\u{fffd}x\""),
        (r#""Hi ${{ inputs.s + "${{ inputs.i }}" }}!""#, r#""Hi str7!""#),
        (r#""${{ 42 }}""#, r#""42""#),
        (r#""\${{ inputs.s }} $ {""#, r#""${{ inputs.s }} $ {""#),
        (r#""}}""#, r#""}}""#),
        (r"'It\'s \\ '", r#""It's \\ ""#),
        ("'${{ inputs.s }}'", r#""${{ inputs.s }}""#),
        ("'a\nb'", r#""a\nb""#),
    ]);
}

#[test]
fn operator_precedence_and_associativity_match_the_documentation() {
    assert_all(&[
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("2 - 3 - 4", "-5"),
        ("8 / 4 / 2", "1"),
        ("-2 * -3", "6"),
        ("--5", "5"),
        ("-inputs.n + +1", "-0.5"),
        ("7 % 3 * 2", "2"),
        ("-7 % 3", "-1"),
        ("5.5 % 2", "1.5"),
        ("1 + 1 == 2 && 2 > 1", "true"),
        ("1 < 2 < 3", "true"),
        ("1 == 1 == true", "true"),
        ("true || false && false", "true"),
        ("(true || false) && false", "false"),
        ("0 && 1 || 2", "2"),
        ("2 || 0 && 1", "2"),
        ("!true || true", "true"),
        ("!inputs.f == true", "true"),
        ("'a' + 'b' + env.EMPTY + inputs.s", r#""abstr""#),
    ]);
}

#[test]
fn values_are_never_converted_implicitly() {
    let plus = "`+` adds numbers or joins strings; convert with str() or num()";
    let num = "convert a string to a number with num()";
    for (expression, expected) in [
        ("'a' + 1", format!("`+` is not defined for string and number at byte 7: {plus}")),
        ("1 + 'a'", format!("`+` is not defined for number and string at byte 5: {plus}")),
        ("[1] + [2]", format!("`+` is not defined for array and array at byte 7: {plus}")),
        ("null + null", format!("`+` is not defined for null and null at byte 8: {plus}")),
        ("1 - 'a'", format!("`-` is not defined for number and string at byte 5: {num}")),
        ("-'a'", format!("`-` is not defined for string at byte 3: {num}")),
        ("{} * 2", format!("`*` is not defined for struct and number at byte 6: {num}")),
        ("1 / 0", "division by zero at byte 5".to_owned()),
        ("1 % 0", "division by zero at byte 5".to_owned()),
        ("1e308 * 10", "the number is too large at byte 9".to_owned()),
        ("1e400", "the number is too large at byte 3".to_owned()),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn values_are_ordered_within_and_between_types() {
    assert_all(&[
        ("1 == 1.0", "true"),
        ("0 == -0", "true"),
        ("1 == '1'", "false"),
        ("1 != '1'", "true"),
        ("null == null", "true"),
        ("null == false", "false"),
        ("[1, {a: 2}] == [1, {a: 2}]", "true"),
        ("{a: 1, b: 2} == {b: 2, a: 1}", "true"),
        ("'B' < 'a'", "true"),
        ("'a' < 'aa'", "true"),
        ("false < true", "true"),
        ("2 <= 2", "true"),
        ("3 >= 4", "false"),
        ("[1, 2] < [1, 2, 3]", "true"),
        ("[1, 3] > [1, 2, 3]", "true"),
        ("{z: 0} < {a: 0, b: 0}", "true"),
        ("{a: 9} < {b: 0}", "true"),
        ("{a: 1} < {a: 2}", "true"),
        ("null < true", "true"),
        ("true < 0", "true"),
        ("42 < 'hello'", "true"),
        ("'z' < []", "true"),
        ("[9] < {}", "true"),
    ]);
}

#[test]
fn and_and_or_return_an_operand_and_short_circuit() {
    assert_all(&[
        ("true && 'x'", r#""x""#),
        ("null && env.NOPE", "null"),
        ("0 || 'd'", r#""d""#),
        ("'v' || env.NOPE", r#""v""#),
        ("env.EMPTY || 'd'", r#""d""#),
        ("[] || {} || false || null || 5", "5"),
        ("false || null", "null"),
        ("!'' && !0 && ![] && !{} && !null", "true"),
        ("!!'0'", "true"),
        ("env.NOPE || 'd'", "env.NOPE: the \"NOPE\" was not found"),
    ]);
}

fn whole_inputs() -> String {
    let inputs = context().inputs.into_iter().map(|(name, input)| (name, input.value));
    ExprValue::Object(inputs.collect()).to_json()
}

#[test]
fn brackets_and_dots_access_members() {
    assert_all(&[
        ("env['HOME']", r#""/h""#),
        ("env[\"X.Y\"]", r#""dotted""#),
        ("vars.CI_JOB_ID + job['CI_JOB_ID']", r#""4242""#),
        ("inputs.arr[2].k", r#""v""#),
        ("inputs.arr[4 - 3]", r#""x""#),
        ("inputs.st['a'].b", r#""deep""#),
        (
            "inputs[inputs.s[0] || 's']",
            "string has no index 0 at byte 19: array indices start at 0; objects have string keys",
        ),
        ("inputs['s']", r#""str""#),
        ("steps['one'].outputs['st'].p[1]", "2"),
        ("steps.one.status == 'success'", "true"),
        ("[1, 2, 3][1]", "2"),
        ("{k: ['v']}.k[0]", r#""v""#),
        ("(inputs.st).a.n", "3"),
        ("func_dir + step_dir + work_dir", r#""/sd/sd/wd""#),
        (
            "inputs.arr[3]",
            "array of length 3 has no index 3 at byte 14: array indices start at 0; objects have string keys",
        ),
        (
            "inputs.arr[-1]",
            "array of length 3 has no index -1 at byte 14: array indices start at 0; objects have string keys",
        ),
        (
            "inputs.arr[0.5]",
            "array of length 3 has no index 0.5 at byte 14: array indices start at 0; objects have string keys",
        ),
        (
            "inputs.arr[null]",
            "array of length 3 has no index of type null at byte 14: array indices start at 0; objects have string keys",
        ),
        (
            "env[0]",
            "expected a string as member name at byte 7: convert a value to a string with str()",
        ),
        (
            "{(1): 2}",
            "expected a string as member name at byte 5: convert a value to a string with str()",
        ),
        ("inputs.arr['0']", "inputs.arr['0']: the \"0\" was not found"),
        ("inputs.s.x + 1", "inputs.s.x: the \"x\" was not found"),
        ("1 + steps.one.exports.X", "steps.one.exports.X: the \"exports\" was not found"),
        ("steps.two.status", "steps.two.status: the \"two\" was not found"),
        ("steps.one.status.x", "steps.one.status.x: the \"x\" was not found"),
        ("work_dir.x", "work_dir.x: the \"x\" was not found"),
        ("inputs == inputs && inputs", &whole_inputs()),
        ("[vars, {e: env}.e['HOME']][1]", r#""/h""#),
        ("steps.one.outputs.n == steps['one'].outputs['n']", "true"),
        ("steps.one", r#"{"outputs":{"n":2,"o":"out1","st":{"p":[1,2]}},"status":"success"}"#),
        ("steps['empty'].outputs", "{}"),
        ("str(vars)", r#""{\"CI_JOB_ID\":\"42\",\"CI_X\":\"${{env.A}}\",\"DASH-K\":\"d\"}""#),
        ("nope.a[0]", "nope.a[0]: the \"nope\" was not found"),
    ]);
}

#[test]
fn reserved_words_are_members_but_not_names() {
    assert_all(&[
        ("if", "`if` is a reserved word at byte 3"),
        ("1 + func", "`func` is a reserved word at byte 7"),
        ("{type: 1}.type", "1"),
        ("inputs.default", "inputs.default: the \"default\" was not found"),
    ]);
}

#[test]
fn functions_convert_values() {
    assert_all(&[
        ("str(42)", r#""42""#),
        ("str(true) + str(null) + str('x')", r#""true\u003cnull\u003ex""#),
        ("str({a: [1]})", r#""{\"a\":[1]}""#),
        ("str(1e21)", r#""1e+21""#),
        ("num('42') + num(' 1' == 1 && '0' || '3.14')", "45.14"),
        ("num('-1e3') + num(5)", "-995"),
        ("num('inf')", "\"inf\" is not a number at byte 3"),
        ("num('')", "\"\" is not a number at byte 3"),
        ("num('1e999')", "the number is too large at byte 3"),
        (
            "num(true)",
            "`num` is not defined for boolean at byte 3: convert a string to a number with num()",
        ),
        ("[bool('x'), bool(''), bool(0), bool([0])]", "[true,false,false,true]"),
        ("success() && always() && !failure() && !cancelled()", "true"),
        ("str()", "str() takes one argument at byte 3"),
        ("str(1, 2)", "str() takes one argument at byte 3"),
        ("success(1)", "success() takes no arguments at byte 3"),
        (
            "upper('x')",
            "unknown function `upper` at byte 3: expected str(), num(), bool(), success(), \
             failure(), always() or cancelled()",
        ),
    ]);
}

#[test]
fn surrounding_text_makes_a_string_unlike_a_final_line_break() {
    assert_eq!(expand_to_json("${{[1]}}").unwrap(), "[1]");
    assert_eq!(expand_to_json(" ${{[1]}}").unwrap(), r#"" [1]""#);
    assert_eq!(expand_to_json("${{[1]}}${{[1]}}").unwrap(), r#""[1][1]""#);
    assert_eq!(expand_to_json("${{ [\n  1,\n  {a: 2}\n] }}\n").unwrap(), r#"[1,{"a":2}]"#);
    assert_eq!(expand_to_json("${{inputs.n}}\n").unwrap(), r#""1.5\n""#);
    assert_eq!(expand_to_json("${{inputs.s}}\n").unwrap(), r#""str\n""#);
    assert_eq!(expand_to_json("").unwrap(), r#""""#);
    assert_eq!(expand_to_json("Use \\${{ x }} or ${{ 'y' }}").unwrap(), r#""Use ${{ x }} or y""#);
    let format = "docker inspect --format '{{.State}} {{json .}}' $(id) ${X}";
    assert_eq!(expand_to_json(format).unwrap(), ExprValue::String(format.to_owned()).to_json());
}

#[test]
fn names_with_dashes_and_blanks_are_resolved_first() {
    let mut context = context();
    for (name, value) in [("a", 5.0), ("b", 3.0), ("a-b", 7.0), ("x + y", 8.0)] {
        context.inputs.insert(name.to_owned(), ExprValue::Number(value).into());
    }
    let value = |text| expand(text, &context).map(|e| e.value.to_json()).map_err(|e| e.to_string());
    assert_eq!(value("${{ inputs.a-b }}").unwrap(), "7");
    assert_eq!(value("${{ inputs.x + y }}").unwrap(), "8");
    assert_eq!(value("${{ inputs.a - inputs.b }}").unwrap(), "2");
    assert_eq!(value("${{ inputs.a -inputs.b }}").unwrap(), "2");
    assert_eq!(value("${{ inputs.st.k-d }}").unwrap(), "1");
    assert_eq!(value("${{ \"${{ inputs.a-b }}\" }}").unwrap(), "\"7\"");
    assert!(condition("job.DASH-K", &context).unwrap());
    // Within a larger expression, `-` is a subtraction.
    assert_eq!(value("${{ (inputs.a-1) }}").unwrap(), "4");
}

#[test]
fn errors_have_an_offset_and_a_fix() {
    let brackets = "use brackets for array items and for names with other characters: `[0]`, \
                    `[\"a-b\"]`";
    for (text, expected) in [
        ("ab ${{ 1 + }}", "expected a value, not `}` at byte 11".to_owned()),
        ("${{ 1 2 }}", "expected an operator or `}}`, not `2` at byte 6".to_owned()),
        ("${{ (1 }}", "expected an operator or `)`, not `}` at byte 7".to_owned()),
        ("${{ [1 2] }}", "expected `,` or `]`, not `2` at byte 7".to_owned()),
        ("${{ [,] }}", "expected a value, not `,` at byte 5".to_owned()),
        ("${{ {a 1} }}", "expected `:`, not `1` at byte 7".to_owned()),
        ("${{ {1: 1} }}", "expected a name, a string, `(` or `}`, not `1` at byte 5".to_owned()),
        ("${{ inputs.arr.0 }}", format!("expected a name, not `0` at byte 15: {brackets}")),
        ("${{ env.A = 'x' }}", "expected an operator or `}}`, not `=` at byte 10: use `==` to compare".to_owned()),
        ("${{ env.A & 'x' }}", "expected an operator or `}}`, not `&` at byte 10: use `&&` for a logical and".to_owned()),
        ("${{ 'a }}", "no closing quote for the string at byte 4".to_owned()),
        ("${{ \"a\\x\" }}", "unknown escape sequence at byte 6: valid in `'…'`: `\\\\ \\'`; in `\"…\"`: `\\\\ \\\" \\/ \\n \\r \\t \\a \\b \\f \\v \\uXXXX \\${{`".to_owned()),
        ("é ${{ § }}", "expected a value, not `§` at byte 7".to_owned()),
        ("a ${{ env", "the \" env\" is not closed: ${{ ... }}".to_owned()),
    ] {
        assert_eq!(expand_to_json(text).unwrap_err(), expected, "{text}");
        let error = find_mentions(text).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
        assert!(text.is_char_boundary(error.offset));
    }
}

#[test]
fn functions_and_first_names_are_checked_but_not_values() {
    assert!(find_mentions("${{ env.X || inputs.y.z['q'] && success() }} }} \\${{").is_ok());
    assert_eq!(
        find_mentions("x ${{ 1 + inptus.a }}").unwrap_err().to_string(),
        "inptus.a: the \"inptus\" was not found"
    );
    assert_eq!(find_mentions("x ${{ inptus.a }}").unwrap_err().offset, 6);
    assert!(find_mentions("${{ upper('x') }}").is_err());
    assert!(condition_mentions("failure() || inputs.a == 1").is_ok());
    assert!(condition_mentions("${{ failure() }}").is_ok());
    assert_eq!(condition_mentions("failure() ||").unwrap_err().offset, 12);
    assert!(is_dynamic("./${{ inputs.dir }}") && !is_dynamic("./{{dir}}"));
}

#[test]
fn condition_implies_success_unless_it_tests_the_status() {
    let went_well = context();
    let failed = ExprContext { failed: true, ..context() };
    let cancelled = ExprContext { cancelled: true, ..context() };
    for (text, expected) in [
        ("true", [true, false, false]),
        ("${{ inputs.b }}", [true, false, false]),
        (" ${{ inputs.f }} ", [false; 3]),
        ("inputs.s == 'str' && inputs.i > 5", [true, false, false]),
        ("\"x${{ inputs.s }}\" == 'xstr'", [true, false, false]),
        ("env.EMPTY", [false; 3]),
        ("success()", [true, false, false]),
        ("failure()", [false, true, false]),
        ("cancelled()", [false, false, true]),
        ("always()", [true; 3]),
        ("${{ always() && inputs.b }}", [true; 3]),
        ("success() || failure()", [true, true, false]),
        ("!cancelled()", [true, true, false]),
        ("inputs.f && always()", [false; 3]),
        ("\"${{ failure() || '' }}\"", [false, true, false]),
    ] {
        let results = [&went_well, &failed, &cancelled].map(|context| condition(text, context));
        assert_eq!(results, expected.map(Ok), "{text}");
    }
    assert_eq!(
        condition("${{ true }} && ${{ false }}", &went_well).unwrap_err().to_string(),
        "text around the `${{ }}` of a condition at byte 12: put `${{ }}` around the whole condition, or omit it"
    );
    assert!(condition("env.A b", &went_well).is_err());
    assert!(condition("env.NOPE", &went_well).is_err());
}

#[test]
fn values_derived_from_secrets_are_secret() {
    let mut context = context();
    context.inputs.insert("token".to_owned(), secret("t0k", "inputs.token"));
    let output = secret("pw", "steps.one.outputs.pw");
    context.steps.get_mut("one").unwrap().outputs.insert("pw".to_owned(), output);
    let secrets = |text: &str| expand(text, &context).unwrap().secrets;
    for text in [
        "${{ inputs.token }}",
        "x ${{ inputs.token }}",
        "${{ \"x ${{ inputs.token }}\" }}",
        "${{ inputs['token'] + 'x' }}",
        "${{ [1, {a: str(inputs.token)}] }}",
        "${{ inputs.token == 'a' }}",
        "${{ inputs.token && 'set' }}",
        "${{ env[inputs.token == 'x' && 'A' || 'HOME'] }}",
    ] {
        assert_eq!(secrets(text), names(&["inputs.token"]), "{text}");
    }
    assert_eq!(secrets("${{ inputs.s || inputs.token }} ${{ steps.one.status }}"), names(&[]));
    let both = names(&["inputs.token", "steps.one.outputs.pw"]);
    // Whole objects depend on each of their members.
    for text in ["${{ inputs }}", "all: ${{ inputs }}", "${{ bool([inputs]) }}"] {
        assert_eq!(secrets(text), names(&["inputs.token"]), "{text}");
    }
    for text in ["${{ steps }}", "${{ steps.one }}", "${{ steps['one'].outputs }}"] {
        assert_eq!(secrets(text), names(&["steps.one.outputs.pw"]), "{text}");
    }
    assert_eq!(secrets("${{ steps.empty }} ${{ vars }} ${{ env }}"), names(&[]));
    assert_eq!(secrets("${{ {i: inputs, s: steps} }}"), both);
    assert_eq!(secrets("${{ inputs.token + steps.one.outputs.pw }}"), both);
    let text = "${{ inputs.token }}:${{ steps.one.outputs.pw }}";
    assert_eq!(expand_text(text, &context).unwrap(), ("t0k:pw".to_owned(), both.clone()));
    let value = ExprValue::from(serde_json::json!({"a": [text], "${{ env.NOPE }}": 1}));
    let expanded = expand_value(&value, &context).unwrap();
    assert_eq!(expanded.secrets, both);
    assert_eq!(expanded.value.to_json(), r#"{"${{ env.NOPE }}":1,"a":["t0k:pw"]}"#);
}
