//! Expressions in `${{ }}`: the language of GitLab's functions, and of GitLab's older steps.
//!
//! Text is literal except for `${{ … }}`; `\${{` is a literal `${{`. An expression that is the whole
//! text keeps its type, otherwise the result is a string. Results are never expanded again.
//!
//! - Values: `null`, `true`, `1.5e3`, `"…"` with escapes and `${{ }}`, `'…'` with neither, `[1, 2]`,
//!   `{name: "x", (inputs.key): 1}`.
//! - Operators, from the tightest: `.name` and `[…]`; `+` `-` `!` before a value; `*` `/` `%`;
//!   `+` `-`; `==` `!=` `<` `<=` `>` `>=`; `&&`; `||`. There are no implicit conversions. `&&` and `||`
//!   return one of their operands. Falsy are `false`, `""`, `0`, `[]`, `{}` and `null`.
//! - Functions: `str(value)`, `num(text)`, `bool(value)`; `success()`, `failure()`, `always()` and
//!   `cancelled()`, for the `if:` of a step.
//! - Names: those of [`ExprContext`].
//!
//! Compatible with step runners before operators existed: a dotted path whose names contain `-` or blanks
//! (`${{job.MY-KEY}}`) takes precedence if it exists; a missing name is reported with the same message; and
//! `}}` without `${{` is literal text, as in scripts.
//!
//! Safe for untrusted text: nesting and the size of results are bounded, and the time is linear in the size
//! of input and output.

mod error;
mod evaluate;
mod expand;
mod names;
mod operators;
mod parser;
mod syntax;
#[cfg(test)]
mod tests;

pub use error::{ExpressionError, ExpressionErrorKind};
pub use expand::{
    NameMention, condition, condition_mentions, expand, expand_text, expand_value, find_mentions,
    is_dynamic,
};
pub use names::{ExpandedValue, ExprContext, StepEndStatus, StepState};
