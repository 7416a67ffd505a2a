//! Tables for people.

use jiff::Timestamp;

use super::context::{Context, OutputError};
use super::style;
use crate::sys::quantity::counted;

/// Writes rows with columns of the same width, the last one as long as it is.
pub fn write<const N: usize>(
    titles: [&str; N],
    rows: &[[String; N]],
    context: &mut Context,
) -> Result<(), OutputError> {
    write_all(&titles, rows, context)
}

/// Writes the same with as many columns as there are titles.
pub fn write_all(
    titles: &[&str],
    rows: &[impl AsRef<[String]>],
    context: &mut Context,
) -> Result<(), OutputError> {
    let mut widths: Vec<_> = titles.iter().map(|title| title.chars().count()).collect();
    for row in rows.iter().map(AsRef::as_ref) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let titles = context.paint.paint(style::TITLE, line(titles, &widths));
    context.line(titles)?;
    for row in rows {
        context.line(line(row.as_ref(), &widths))?;
    }
    Ok(())
}

fn line(cells: &[impl AsRef<str>], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths);
    let padded: Vec<_> = cells.map(|(cell, width)| format!("{:width$}", cell.as_ref())).collect();
    padded.join("  ").trim_end().to_owned()
}

/// Returns how long ago something was, as `3 days ago`.
pub fn ago(time: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(time).as_secs().max(0);
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", counted(usize::try_from(count).unwrap_or_default(), unit))
}

#[test]
fn columns_are_aligned_and_nothing_is_left_at_the_end() {
    assert_eq!(line(&["a", "b\u{fc}", ""], &[3, 4, 9]), "a    b\u{fc}");
}
