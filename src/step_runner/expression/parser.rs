//! Parser of texts with expressions.
//!
//! Operators are parsed by precedence climbing. Tokens are read on demand: only the parser knows where a
//! string or an expression ends.

use std::collections::BTreeSet;

use super::super::Value;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::names::{self, Context, NameTarget};
use super::operators::{Operator, Unary};
use super::syntax::{Base, Expr, Function, Key, Node, Operation, Part, Token};

/// Limit of the nesting depth of expressions.
const MAX_DEPTH: usize = 64;

/// How much text after an unclosed `${{` is quoted in the error, in characters.
const MAX_QUOTED: usize = 80;

type Result<T> = std::result::Result<T, ExpressionError>;

/// Parser state: a text and an offset.
pub struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    /// Context for paths that exist, which take precedence over expressions.
    context: Option<&'t Context>,
    /// Whether a status function such as `failure()` was called.
    asks_for_status: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str, context: Option<&'t Context>) -> Self {
        Parser { text, at: 0, depth: 0, context, asks_for_status: false }
    }

    /// Parses a text into literal parts and expressions.
    pub fn text(mut self) -> Result<Vec<Part<'t>>> {
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
                parts.push(Part::Node(self.enclosed()?));
            }
        }
        plain.push_str(self.rest());
        push_plain(&mut parts, &mut plain);
        Ok(parts)
    }

    /// Parses a condition with or without `${{ }}` around it. Returns also whether it calls a status
    /// function.
    pub fn condition(mut self) -> Result<(Node<'t>, bool)> {
        self.skip_space();
        let node = if self.eat("${{") {
            let node = self.enclosed()?;
            self.skip_space();
            if !self.rest().is_empty() {
                return Err(Kind::Surrounded.at(self.at));
            }
            node
        } else if let Some(node) = self.known_path(self.text.trim()) {
            node
        } else {
            let node = self.expression(0)?;
            match self.peek() {
                Token::End => node,
                _ => return self.expected("an operator or the end"),
            }
        };
        Ok((node, self.asks_for_status))
    }

    /// Parses an expression after `${{`, and its `}}`.
    fn enclosed(&mut self) -> Result<Node<'t>> {
        let Some(len) = self.rest().find("}}") else {
            let mut text: String = self.rest().chars().take(MAX_QUOTED).collect();
            if text.len() < self.rest().len() {
                text.push('…');
            }
            return Err(Kind::NotClosed { text }.at(self.at - 3));
        };
        let path = self.rest()[..len].trim();
        if let Some(node) = self.known_path(path) {
            self.at += len + 2;
            return Ok(node);
        }
        if path.is_empty() {
            return Err(Kind::NotFound { path: String::new(), key: String::new() }.at(self.at));
        }
        let node = self.expression(0)?;
        self.skip_space();
        if self.eat("}}") { Ok(node) } else { self.expected("an operator or `}}`") }
    }

    /// Returns a text as an old-style path, if the path exists.
    fn known_path(&self, path: &'t str) -> Option<Node<'t>> {
        let found = names::find(self.context?, path, &mut BTreeSet::new())?;
        matches!(found, NameTarget::Text(_) | NameTarget::Value(_))
            .then_some(Node { at: self.at, expr: Expr::Path(path) })
    }

    /// Parses operands with operators of a precedence above `power`.
    fn expression(&mut self, power: u8) -> Result<Node<'t>> {
        self.enter()?;
        let mut left = self.operand()?;
        while let Token::Symbol(symbol) = self.peek()
            && let Some((operator, own)) = Operator::from_symbol(symbol)
            && own > power
        {
            let at = self.at;
            self.at += symbol.len();
            let operation = Operation { operator, at, right: self.expression(own)? };
            match &mut left.expr {
                Expr::Fold(_, operations) => operations.push(operation),
                _ => {
                    let at = left.at;
                    left = Node { at, expr: Expr::Fold(Box::new(left), vec![operation]) };
                }
            }
        }
        self.depth -= 1;
        Ok(left)
    }

    /// Parses an operand with its unary operators.
    fn operand(&mut self) -> Result<Node<'t>> {
        let unary = match self.peek() {
            Token::Symbol("+") => Unary::Plus,
            Token::Symbol("-") => Unary::Minus,
            Token::Symbol("!") => Unary::Not,
            _ => return self.access(),
        };
        let at = self.at;
        self.at += 1;
        self.enter()?;
        let operand = self.operand()?;
        self.depth -= 1;
        Ok(Node { at, expr: Expr::Unary(unary, Box::new(operand)) })
    }

    fn access(&mut self) -> Result<Node<'t>> {
        let (token, len) = self.look();
        let at = self.at;
        let base = match token {
            Token::Name(name) if names::is_reserved(name) => {
                return Err(Kind::Reserved(name.to_owned()).at(at));
            }
            Token::Name("null" | "true" | "false") => Base::Node(Box::new(self.value()?)),
            Token::Name(name) => {
                self.at += len;
                if self.peek() == Token::Symbol("(") {
                    Base::Node(Box::new(self.call(at, name)?))
                } else {
                    Base::Root(name)
                }
            }
            _ => Base::Node(Box::new(self.value()?)),
        };
        let mut end = self.at;
        let mut keys = Vec::new();
        while let Token::Symbol(symbol @ ("." | "[")) = self.peek() {
            self.at += 1;
            keys.push(if symbol == "." { self.name(at)? } else { self.index()? });
            end = self.at;
        }
        let path = &self.text[at..end];
        match base {
            Base::Root(name) if !names::is_root(name) => {
                Err(Kind::NotFound { path: path.to_owned(), key: name.to_owned() }.at(at))
            }
            Base::Node(node) if keys.is_empty() => Ok(*node),
            base => Ok(Node { at, expr: Expr::Access { path, base, keys } }),
        }
    }

    /// Parses a name after a dot, of a path that starts at `start`.
    fn name(&mut self, start: usize) -> Result<Key<'t>> {
        match self.look() {
            (Token::Name(name), len) => {
                self.at += len;
                Ok(Key::Name(self.at - len, name))
            }
            _ if self.is_over() => {
                let path = self.text[start..self.at].trim_end().to_owned();
                Err(Kind::NotFound { path, key: String::new() }.at(self.at))
            }
            _ => self.expected("a name"),
        }
    }

    /// Parses an index and the closing bracket.
    fn index(&mut self) -> Result<Key<'t>> {
        let index = self.expression(0)?;
        self.close("]", "an operator or `]`")?;
        Ok(Key::Index(index))
    }

    /// Parses a literal or a parenthesized expression.
    fn value(&mut self) -> Result<Node<'t>> {
        let (token, len) = self.look();
        let at = self.at;
        self.at += len;
        let expr = match token {
            Token::Name("null") => Expr::Value(Value::Null),
            Token::Name("true") => Expr::Value(Value::Bool(true)),
            Token::Name("false") => Expr::Value(Value::Bool(false)),
            Token::Number(digits) => match digits.parse::<f64>() {
                Ok(number) if number.is_finite() => Expr::Value(Value::Number(number)),
                _ => return Err(Kind::Range.at(at)),
            },
            Token::Symbol("'") => Expr::Value(Value::String(self.raw_string(at)?)),
            Token::Symbol("\"") => self.string(at)?,
            Token::Symbol("[") => {
                Expr::Array(self.items("]", "`,` or `]`", |parser| parser.expression(0))?)
            }
            Token::Symbol("{") => Expr::Object(self.items("}", "`,` or `}`", Self::member)?),
            Token::Symbol("(") => {
                let node = self.expression(0)?;
                self.close(")", "an operator or `)`")?;
                return Ok(node);
            }
            _ => {
                self.at = at;
                return self.expected("a value");
            }
        };
        Ok(Node { at, expr })
    }

    /// Parses items separated by commas, with an optional trailing one, up to `close`.
    fn items<T>(
        &mut self,
        close: &'static str,
        expected: &'static str,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        loop {
            if self.peek() == Token::Symbol(close) {
                self.at += 1;
                return Ok(items);
            }
            items.push(item(self)?);
            match self.peek() {
                Token::Symbol(",") => self.at += 1,
                Token::Symbol(symbol) if symbol == close => {}
                _ => return self.expected(expected),
            }
        }
    }

    /// Parses a member name and its value.
    fn member(&mut self) -> Result<(Node<'t>, Node<'t>)> {
        let key = match self.look() {
            (Token::Name(name), len) => {
                self.at += len;
                Node { at: self.at - len, expr: Expr::Value(Value::String(name.to_owned())) }
            }
            (Token::Symbol("\"" | "'" | "("), _) => self.value()?,
            _ => return self.expected("a name, a string, `(` or `}`"),
        };
        self.close(":", "`:`")?;
        Ok((key, self.expression(0)?))
    }

    /// Parses the arguments of the function whose name is at `at`.
    fn call(&mut self, at: usize, name: &str) -> Result<Node<'t>> {
        self.at += 1;
        let Some(function) = Function::from_name(name) else {
            return Err(Kind::Function(name.to_owned()).at(at));
        };
        let values = self.items(")", "`,` or `)`", |parser| parser.expression(0))?;
        let takes = function.takes();
        if values.len() != takes {
            return Err(Kind::Arguments { function: function.name(), takes }.at(at));
        }
        self.asks_for_status |= function.is_about_status();
        Ok(Node { at, expr: Expr::Call(function, values) })
    }

    /// Parses a single-quoted string, opened at `open`.
    fn raw_string(&mut self, open: usize) -> Result<String> {
        let mut text = String::new();
        loop {
            match self.next_char() {
                None => return Err(Kind::Quote.at(open)),
                Some('\'') => return Ok(text),
                Some('\\') => {
                    let at = self.at - 1;
                    match self.next_char() {
                        Some(c @ ('\\' | '\'')) => text.push(c),
                        _ => return Err(Kind::Escape.at(at)),
                    }
                }
                Some(c) => text.push(c),
            }
        }
    }

    /// Parses a double-quoted string, opened at `open`.
    fn string(&mut self, open: usize) -> Result<Expr<'t>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        loop {
            if self.eat("${{") {
                push_plain(&mut parts, &mut plain);
                parts.push(Part::Node(self.enclosed()?));
                continue;
            }
            match self.next_char() {
                None => return Err(Kind::Quote.at(open)),
                Some('"') => break,
                Some('\\') => self.escape(&mut plain)?,
                Some(c) => plain.push(c),
            }
        }
        if parts.is_empty() {
            return Ok(Expr::Value(Value::String(plain)));
        }
        push_plain(&mut parts, &mut plain);
        Ok(Expr::Text(parts))
    }

    /// Parses an escape sequence after its backslash.
    fn escape(&mut self, plain: &mut String) -> Result<()> {
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
                let digits = digits.ok_or_else(|| Kind::Escape.at(at))?;
                self.at += 4;
                let code = u32::from_str_radix(digits, 16).expect("four hexadecimal digits");
                // A lone surrogate is not a character.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(Kind::Escape.at(at)),
        });
        Ok(())
    }

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Kind::TooDeep.at(self.at)) } else { Ok(()) }
    }

    fn close(&mut self, symbol: &'static str, expected: &'static str) -> Result<()> {
        self.skip_space();
        if self.eat(symbol) { Ok(()) } else { self.expected(expected) }
    }

    fn expected<T>(&mut self, expected: &'static str) -> Result<T> {
        let found = self.peek().describe();
        Err(Kind::Expected { expected, found }.at(self.at))
    }

    /// Returns whether the expression ends here.
    fn is_over(&self) -> bool {
        let rest = self.rest().trim_start();
        rest.is_empty() || rest.starts_with("}}")
    }

    /// Skips blanks and returns the next token, without consuming it.
    fn peek(&mut self) -> Token<'t> {
        self.look().0
    }

    /// Skips blanks and returns the next token and its length, without consuming it.
    fn look(&mut self) -> (Token<'t>, usize) {
        self.skip_space();
        Token::first(self.rest())
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

fn push_plain(parts: &mut Vec<Part<'_>>, plain: &mut String) {
    if !plain.is_empty() {
        parts.push(Part::Plain(std::mem::take(plain)));
    }
}
