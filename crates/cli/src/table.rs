//! Human-readable tables.

use jiff::Timestamp;
use oci_hooks_files::quantity::format_count;

use super::context::{CliContext, OutputError};
use super::style;

/// Writes a table with aligned columns; the last column is not padded.
pub fn write<const N: usize>(
    titles: [&str; N],
    rows: &[[String; N]],
    context: &mut CliContext,
) -> Result<(), OutputError> {
    write_all(&titles, rows, context)
}

/// Writes a table whose number of columns is known only at run time.
pub fn write_all(
    titles: &[&str],
    rows: &[impl AsRef<[String]>],
    context: &mut CliContext,
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

/// Returns the age of a time, for example `3 days ago`.
pub fn format_age(time: Timestamp) -> String {
    let seconds = Timestamp::now().duration_since(time).as_secs().max(0);
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", format_count(usize::try_from(count).unwrap_or_default(), unit))
}

#[test]
fn columns_are_aligned_without_trailing_blanks() {
    assert_eq!(line(&["a", "b\u{fc}", ""], &[3, 4, 9]), "a    b\u{fc}");
}
