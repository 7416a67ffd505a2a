//! Values in the format of Go's library, as GitLab's programs expect them.

use std::time::Duration;

/// Returns a duration as `time.Duration` prints it: `1h0m0s`, `1.5s`, `20ms`.
pub fn duration(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    let fraction = |value: u128, unit: u128| {
        let digits = format!("{:0width$}", value % unit, width = unit.ilog10() as usize);
        let digits = digits.trim_end_matches('0');
        let whole = value / unit;
        if digits.is_empty() { whole.to_string() } else { format!("{whole}.{digits}") }
    };
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(nanoseconds, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(nanoseconds, 1_000_000)),
        _ => {
            let seconds = fraction(nanoseconds % 60_000_000_000, 1_000_000_000);
            let minutes = nanoseconds / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Returns the components of a path after lexical cleaning, as by Go's `filepath.Clean`: without
/// `.`, without `..` after a name, and without double slashes.
fn clean(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    parts
}

/// Returns the path of a cache archive, `CACHE_DIR/KEY/cache.zip`, relative to the working
/// directory if possible.
pub fn archive_path(cache_dir: &str, key: &str, work_dir: &str) -> String {
    let parts = [cache_dir, key, "cache.zip"];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let path = parts.join("/");
    let (from, to) = (clean(work_dir), clean(&path));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let is_absolute = path.starts_with('/');
    if is_absolute != work_dir.starts_with('/') || from[common..].contains(&"..") {
        return if is_absolute { format!("/{}", to.join("/")) } else { to.join("/") };
    }
    let up = from[common..].iter().map(|_| "..");
    up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_like_in_go() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn archives_are_relative_to_the_working_directory() {
        for (cache, key, work, path) in [
            ("/cache/g/p", "k", "/builds/g/p", "../../../cache/g/p/k/cache.zip"),
            ("/builds/g/p/c", "k", "/builds/g/p", "c/k/cache.zip"),
            ("/cache", "../../k", "/b", "../k/cache.zip"),
            ("cache", "k", "/b", "cache/k/cache.zip"),
            ("", "k", "/b", "k/cache.zip"),
        ] {
            assert_eq!(archive_path(cache, key, work), path);
        }
    }
}
