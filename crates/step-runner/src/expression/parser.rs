//! Parser of texts with expressions.
//!
//! Operators are parsed by precedence climbing. Tokens are read on demand: only the parser knows where a
//! string or an expression ends.

use std::collections::BTreeSet;

use super::super::ExprValue;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::names::{self, ExprContext, NameTarget};
use super::operators::{BinaryOperator, UnaryOperator};
use super::syntax::{
    AccessBase, AccessKey, BinaryOperation, Expr, ExprFunction, ExprNode, ExprToken, TextPart,
};

/// Limit of the nesting depth of expressions.
const MAX_DEPTH: usize = 64;

/// Maximum number of characters that the error about an unclosed `${{` quotes.
const MAX_QUOTED: usize = 80;

type ParseResult<T> = Result<T, ExpressionError>;

/// A parser of a text with expressions.
pub struct ExprParser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    /// Names in which the whole text of an expression is first looked up as a dotted path:
    /// `vars.A-1` is the variable `A-1` if it exists, and otherwise a subtraction. `None` disables
    /// the lookup.
    context: Option<&'t ExprContext>,
    /// Set once the parser has read a call of a status function such as `failure()`.
    asks_for_status: bool,
}

impl<'t> ExprParser<'t> {
    pub(super) fn new(text: &'t str, context: Option<&'t ExprContext>) -> Self {
        ExprParser { text, at: 0, depth: 0, context, asks_for_status: false }
    }

    /// Parses a text into literal parts and expressions.
    pub fn text(mut self) -> ParseResult<Vec<TextPart<'t>>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        while let Some(before) = self.rest().find("${{").map(|open| &self.rest()[..open]) {
            self.at += before.len() + 3;
            if let Some(before) = before.strip_suffix('\\') {
                plain.push_str(before);
                plain.push_str("${{");
            } else {
                plain.push_str(before);
                push_plain(&mut parts, &mut plain);
                parts.push(TextPart::Node(self.parse_enclosed()?));
            }
        }
        plain.push_str(self.rest());
        push_plain(&mut parts, &mut plain);
        Ok(parts)
    }

    /// Parses a condition with or without `${{ }}` around it. Also returns whether it calls a status
    /// function.
    pub fn condition(mut self) -> ParseResult<(ExprNode<'t>, bool)> {
        self.skip_space();
        let node = if self.eat("${{") {
            let node = self.parse_enclosed()?;
            self.skip_space();
            if !self.rest().is_empty() {
                return Err(Kind::Surrounded.with_offset(self.at));
            }
            node
        } else if let Some(node) = self.find_known_path(self.text.trim()) {
            node
        } else {
            let node = self.expression(0)?;
            match self.peek() {
                ExprToken::End => node,
                _ => return self.expected_error("an operator or the end"),
            }
        };
        Ok((node, self.asks_for_status))
    }

    /// Parses the expression after a `${{`, and the `}}` that closes it.
    fn parse_enclosed(&mut self) -> ParseResult<ExprNode<'t>> {
        let Some(len) = self.rest().find("}}") else {
            let mut text: String = self.rest().chars().take(MAX_QUOTED).collect();
            if text.len() < self.rest().len() {
                text.push('…');
            }
            return Err(Kind::NotClosed { text }.with_offset(self.at - 3));
        };
        let path = self.rest()[..len].trim();
        if let Some(node) = self.find_known_path(path) {
            self.at += len + 2;
            return Ok(node);
        }
        if path.is_empty() {
            return Err(
                Kind::NotFound { path: String::new(), key: String::new() }.with_offset(self.at)
            );
        }
        let node = self.expression(0)?;
        self.skip_space();
        if self.eat("}}") { Ok(node) } else { self.expected_error("an operator or `}}`") }
    }

    /// Returns a text as [`Expr::Path`] if it is the dotted path of a value in the context.
    fn find_known_path(&self, path: &'t str) -> Option<ExprNode<'t>> {
        let found = names::find(self.context?, path, &mut BTreeSet::new())?;
        matches!(found, NameTarget::Text(_) | NameTarget::Value(_))
            .then_some(ExprNode { at: self.at, expr: Expr::Path(path) })
    }

    /// Parses an operand, and the operators after it whose precedence is above `power`.
    fn expression(&mut self, power: u8) -> ParseResult<ExprNode<'t>> {
        self.enter()?;
        let mut left = self.operand()?;
        while let ExprToken::Symbol(symbol) = self.peek()
            && let Some((operator, own)) = BinaryOperator::from_symbol(symbol)
            && own > power
        {
            let at = self.at;
            self.at += symbol.len();
            let operation = BinaryOperation { operator, at, right: self.expression(own)? };
            match &mut left.expr {
                Expr::Fold(_, operations) => operations.push(operation),
                _ => {
                    let at = left.at;
                    left = ExprNode { at, expr: Expr::Fold(Box::new(left), vec![operation]) };
                }
            }
        }
        self.depth -= 1;
        Ok(left)
    }

    /// Parses an operand with the unary operators before it.
    fn operand(&mut self) -> ParseResult<ExprNode<'t>> {
        let unary = match self.peek() {
            ExprToken::Symbol("+") => UnaryOperator::Plus,
            ExprToken::Symbol("-") => UnaryOperator::Minus,
            ExprToken::Symbol("!") => UnaryOperator::Not,
            _ => return self.access(),
        };
        let at = self.at;
        self.at += 1;
        self.enter()?;
        let operand = self.operand()?;
        self.depth -= 1;
        Ok(ExprNode { at, expr: Expr::Unary(unary, Box::new(operand)) })
    }

    fn access(&mut self) -> ParseResult<ExprNode<'t>> {
        let (token, len) = self.peek_token();
        let at = self.at;
        let base = match token {
            ExprToken::Name(name) if names::is_reserved(name) => {
                return Err(Kind::Reserved(name.to_owned()).with_offset(at));
            }
            ExprToken::Name("null" | "true" | "false") => AccessBase::Node(Box::new(self.value()?)),
            ExprToken::Name(name) => {
                self.at += len;
                if self.peek() == ExprToken::Symbol("(") {
                    AccessBase::Node(Box::new(self.call(at, name)?))
                } else {
                    AccessBase::Root(name)
                }
            }
            _ => AccessBase::Node(Box::new(self.value()?)),
        };
        let mut end = self.at;
        let mut keys = Vec::new();
        while let ExprToken::Symbol(symbol @ ("." | "[")) = self.peek() {
            self.at += 1;
            keys.push(if symbol == "." { self.name(at)? } else { self.index()? });
            end = self.at;
        }
        let path = &self.text[at..end];
        match base {
            AccessBase::Root(name) if !names::is_root(name) => {
                Err(Kind::NotFound { path: path.to_owned(), key: name.to_owned() }.with_offset(at))
            }
            AccessBase::Node(node) if keys.is_empty() => Ok(*node),
            base => Ok(ExprNode { at, expr: Expr::Access { path, base, keys } }),
        }
    }

    /// Parses the name after a dot. `start` is the offset at which its path starts.
    fn name(&mut self, start: usize) -> ParseResult<AccessKey<'t>> {
        match self.peek_token() {
            (ExprToken::Name(name), len) => {
                self.at += len;
                Ok(AccessKey::Name(self.at - len, name))
            }
            _ if self.is_over() => {
                let path = self.text[start..self.at].trim_end().to_owned();
                Err(Kind::NotFound { path, key: String::new() }.with_offset(self.at))
            }
            _ => self.expected_error("a name"),
        }
    }

    /// Parses the index after an opening bracket, and the closing bracket.
    fn index(&mut self) -> ParseResult<AccessKey<'t>> {
        let index = self.expression(0)?;
        self.close("]", "an operator or `]`")?;
        Ok(AccessKey::Index(index))
    }

    /// Parses a literal or a parenthesized expression.
    fn value(&mut self) -> ParseResult<ExprNode<'t>> {
        let (token, len) = self.peek_token();
        let at = self.at;
        self.at += len;
        let expr = match token {
            ExprToken::Name("null") => Expr::Value(ExprValue::Null),
            ExprToken::Name("true") => Expr::Value(ExprValue::Bool(true)),
            ExprToken::Name("false") => Expr::Value(ExprValue::Bool(false)),
            ExprToken::Number(digits) => match digits.parse::<f64>() {
                Ok(number) if number.is_finite() => Expr::Value(ExprValue::Number(number)),
                _ => return Err(Kind::Range.with_offset(at)),
            },
            ExprToken::Symbol("'") => Expr::Value(ExprValue::String(self.parse_raw_string(at)?)),
            ExprToken::Symbol("\"") => self.string(at)?,
            ExprToken::Symbol("[") => {
                Expr::Array(self.items("]", "`,` or `]`", |parser| parser.expression(0))?)
            }
            ExprToken::Symbol("{") => Expr::Object(self.items("}", "`,` or `}`", Self::member)?),
            ExprToken::Symbol("(") => {
                let node = self.expression(0)?;
                self.close(")", "an operator or `)`")?;
                return Ok(node);
            }
            _ => {
                self.at = at;
                return self.expected_error("a value");
            }
        };
        Ok(ExprNode { at, expr })
    }

    /// Parses items separated by commas, and the token `close` after them. A trailing comma is
    /// allowed.
    fn items<T>(
        &mut self,
        close: &'static str,
        expected: &'static str,
        item: impl Fn(&mut Self) -> ParseResult<T>,
    ) -> ParseResult<Vec<T>> {
        let mut items = Vec::new();
        loop {
            if self.peek() == ExprToken::Symbol(close) {
                self.at += 1;
                return Ok(items);
            }
            items.push(item(self)?);
            match self.peek() {
                ExprToken::Symbol(",") => self.at += 1,
                ExprToken::Symbol(symbol) if symbol == close => {}
                _ => return self.expected_error(expected),
            }
        }
    }

    /// Parses a member of an object: its name and its value.
    fn member(&mut self) -> ParseResult<(ExprNode<'t>, ExprNode<'t>)> {
        let key = match self.peek_token() {
            (ExprToken::Name(name), len) => {
                self.at += len;
                ExprNode {
                    at: self.at - len,
                    expr: Expr::Value(ExprValue::String(name.to_owned())),
                }
            }
            (ExprToken::Symbol("\"" | "'" | "("), _) => self.value()?,
            _ => return self.expected_error("a name, a string, `(` or `}`"),
        };
        self.close(":", "`:`")?;
        Ok((key, self.expression(0)?))
    }

    /// Parses the arguments of the function `name`, whose name is at offset `at`.
    fn call(&mut self, at: usize, name: &str) -> ParseResult<ExprNode<'t>> {
        self.at += 1;
        let Some(function) = ExprFunction::from_name(name) else {
            return Err(Kind::Function(name.to_owned()).with_offset(at));
        };
        let values = self.items(")", "`,` or `)`", |parser| parser.expression(0))?;
        let takes = function.argument_count();
        if values.len() != takes {
            return Err(Kind::Arguments { function: function.name(), takes }.with_offset(at));
        }
        self.asks_for_status |= function.is_about_status();
        Ok(ExprNode { at, expr: Expr::Call(function, values) })
    }

    /// Parses the rest of a single-quoted string whose quote is at offset `open`.
    fn parse_raw_string(&mut self, open: usize) -> ParseResult<String> {
        let mut text = String::new();
        loop {
            match self.next_char() {
                None => return Err(Kind::Quote.with_offset(open)),
                Some('\'') => return Ok(text),
                Some('\\') => {
                    let at = self.at - 1;
                    match self.next_char() {
                        Some(c @ ('\\' | '\'')) => text.push(c),
                        _ => return Err(Kind::Escape.with_offset(at)),
                    }
                }
                Some(c) => text.push(c),
            }
        }
    }

    /// Parses the rest of a double-quoted string whose quote is at offset `open`.
    fn string(&mut self, open: usize) -> ParseResult<Expr<'t>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        loop {
            if self.eat("${{") {
                push_plain(&mut parts, &mut plain);
                parts.push(TextPart::Node(self.parse_enclosed()?));
                continue;
            }
            match self.next_char() {
                None => return Err(Kind::Quote.with_offset(open)),
                Some('"') => break,
                Some('\\') => self.escape(&mut plain)?,
                Some(c) => plain.push(c),
            }
        }
        if parts.is_empty() {
            return Ok(Expr::Value(ExprValue::String(plain)));
        }
        push_plain(&mut parts, &mut plain);
        Ok(Expr::Text(parts))
    }

    /// Parses an escape sequence after its backslash, and appends its character to `plain`.
    fn escape(&mut self, plain: &mut String) -> ParseResult<()> {
        let at = self.at - 1;
        if self.eat("${{") {
            plain.push_str("${{");
            return Ok(());
        }
        plain.push(match self.next_char() {
            Some(c @ ('\\' | '"' | '/')) => c,
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('v') => '\u{b}',
            Some('u') => {
                let digits =
                    self.rest().get(..4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                let digits = digits.ok_or_else(|| Kind::Escape.with_offset(at))?;
                self.at += 4;
                let code = u32::from_str_radix(digits, 16).expect("four hexadecimal digits");
                // A lone surrogate is not a character.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(Kind::Escape.with_offset(at)),
        });
        Ok(())
    }

    fn enter(&mut self) -> ParseResult<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Kind::TooDeep.with_offset(self.at)) } else { Ok(()) }
    }

    fn close(&mut self, symbol: &'static str, expected: &'static str) -> ParseResult<()> {
        self.skip_space();
        if self.eat(symbol) { Ok(()) } else { self.expected_error(expected) }
    }

    fn expected_error<T>(&mut self, expected: &'static str) -> ParseResult<T> {
        let found = self.peek().describe();
        Err(Kind::Expected { expected, found }.with_offset(self.at))
    }

    /// Returns whether only blanks follow, up to `}}` or the end of the text.
    fn is_over(&self) -> bool {
        let rest = self.rest().trim_start();
        rest.is_empty() || rest.starts_with("}}")
    }

    /// Skips blanks and returns the next token, without consuming it.
    fn peek(&mut self) -> ExprToken<'t> {
        self.peek_token().0
    }

    /// Skips blanks and returns the next token and its length, without consuming it.
    fn peek_token(&mut self) -> (ExprToken<'t>, usize) {
        self.skip_space();
        ExprToken::read_first(self.rest())
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }
}

fn push_plain(parts: &mut Vec<TextPart<'_>>, plain: &mut String) {
    if !plain.is_empty() {
        parts.push(TextPart::Plain(std::mem::take(plain)));
    }
}
