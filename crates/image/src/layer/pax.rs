//! Parses extended headers (pax), for values that do not fit a plain tar header.

/// Extended header of an entry.
#[derive(Debug, Default)]
pub struct Pax {
    pub path: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<(i64, u32)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sparse: SparseKeys,
}

/// GNU's keys for a sparse file, of formats 0.0, 0.1 and 1.0.
#[derive(Debug, Default)]
pub struct SparseKeys {
    /// Name of the file; the entry's name is a placeholder.
    pub name: Option<Vec<u8>>,
    /// Size of the file with its holes.
    pub size: Option<u64>,
    /// Alternating offsets and lengths of the data.
    pub map: Vec<u64>,
    /// If set, the map precedes the data.
    pub is_in_data: bool,
}

const NO_NUMBER: &str = "a value of an extended header is not a number";

impl Pax {
    /// Parses an extended header. The last value of a key counts; an empty value is a missing one.
    pub fn parse(data: &[u8]) -> Result<Self, &'static str> {
        let mut pax = Pax::default();
        let mut version = (None, None);
        let mut records = data;
        while let Some((key, value)) = record(&mut records)? {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                pax.xattrs.retain(|(known, _)| known != name);
                pax.xattrs.push((name.to_vec(), value.to_vec()));
                continue;
            }
            match key {
                b"path" => pax.path = text(value)?,
                b"linkpath" => pax.target = text(value)?,
                b"size" => pax.size = number(value)?,
                b"uid" => pax.uid = number(value)?,
                b"gid" => pax.gid = number(value)?,
                b"mtime" => pax.mtime = time(value)?,
                b"GNU.sparse.name" => pax.sparse.name = text(value)?,
                b"GNU.sparse.size" | b"GNU.sparse.realsize" => pax.sparse.size = number(value)?,
                b"GNU.sparse.major" => version.0 = number(value)?,
                b"GNU.sparse.minor" => version.1 = number(value)?,
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                    // Offsets and lengths alternate.
                    if (key == b"GNU.sparse.offset") != pax.sparse.map.len().is_multiple_of(2) {
                        return Err("the map of a sparse file is malformed");
                    }
                    pax.sparse.map.extend(number(value)?);
                }
                b"GNU.sparse.map" => {
                    let numbers = value.split(|byte| *byte == b',');
                    let map: Result<Vec<_>, _> = numbers.map(number).collect();
                    pax.sparse.map = map?.into_iter().flatten().collect();
                }
                _ => {}
            }
        }
        match version {
            (None | Some(0), None | Some(0 | 1)) => {}
            (Some(1), Some(0)) => pax.sparse.is_in_data = true,
            _ => return Err("the format of a sparse file is unknown"),
        }
        Ok(pax)
    }
}

/// Rejects an extended header for all following entries if some readers apply its keys and others
/// ignore them.
pub fn check_global(data: &[u8]) -> Result<(), &'static str> {
    let mut records = data;
    while let Some((key, _)) = record(&mut records)? {
        if matches!(key, b"path" | b"linkpath" | b"size" | b"uid" | b"gid")
            || key.starts_with(b"GNU.sparse.")
            || key.starts_with(b"SCHILY.xattr.")
        {
            return Err("a global extended header has a name, size, owner or attribute");
        }
    }
    Ok(())
}

/// A key and its value.
type PaxRecord<'a> = (&'a [u8], &'a [u8]);

/// Takes the next record, `LENGTH KEY=VALUE` and a line break, off the data.
fn record<'a>(data: &mut &'a [u8]) -> Result<Option<PaxRecord<'a>>, &'static str> {
    const MALFORMED: &str = "an extended header is malformed";
    if data.is_empty() {
        return Ok(None);
    }
    let space = data.iter().take(20).position(|byte| *byte == b' ').ok_or(MALFORMED)?;
    let length = number(&data[..space])?.and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= data.len()).ok_or(MALFORMED)?;
    let (record, rest) = data.split_at(length);
    let [pair @ .., b'\n'] = record.get(space + 1..).ok_or(MALFORMED)? else {
        return Err(MALFORMED);
    };
    let equals = pair.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
    *data = rest;
    Ok(Some((&pair[..equals], &pair[equals + 1..])))
}

fn text(value: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if value.contains(&0) {
        return Err("a name in an extended header has a zero byte");
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

/// Reads a number that consists of decimal digits only.
pub fn number(value: &[u8]) -> Result<Option<u64>, &'static str> {
    if value.is_empty() {
        return Ok(None);
    }
    let digits = value.iter().all(u8::is_ascii_digit).then_some(value).ok_or(NO_NUMBER)?;
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.map(Some).ok_or(NO_NUMBER)
}

/// Reads seconds with a fraction, possibly negative.
fn time(value: &[u8]) -> Result<Option<(i64, u32)>, &'static str> {
    if value.is_empty() {
        return Ok(None);
    }
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(value) => (true, value),
        None => (false, value),
    };
    let point = value.iter().position(|byte| *byte == b'.').unwrap_or(value.len());
    let seconds = number(&value[..point])?.and_then(|seconds| i64::try_from(seconds).ok());
    let seconds = seconds.ok_or(NO_NUMBER)?;
    let fraction = value.get(point + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(NO_NUMBER);
    }
    let digits = fraction.iter().map(|digit| u32::from(digit - b'0')).chain(std::iter::repeat(0));
    let nanoseconds = digits.take(9).fold(0, |value, digit| value * 10 + digit);
    Ok(Some(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed_by_their_length() {
        let data = b"30 SCHILY.xattr.user.a=1\n2=3\n\n12 path=a/b\n";
        let pax = Pax::parse(data).unwrap();
        assert_eq!(pax.xattrs, [(b"user.a".to_vec(), b"1\n2=3\n".to_vec())]);
        assert_eq!(pax.path.as_deref(), Some(&b"a/b"[..]));
    }

    #[test]
    fn malformed_records_are_rejected() {
        for data in [
            &b"path=a\n"[..],
            b"99 path=a\n",
            b"8 path=a\n",
            b"11 path=a\n",
            b"6 path\n",
            b"0 =\n",
            b"10 size=1",
            b"11 size=-1\n",
            b"11 size=+1\n",
            b"30 size=99999999999999999999\n",
            b"11 path=\0a\n",
        ] {
            Pax::parse(data).expect_err(&String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        for (text, expected) in [
            ("12", (12, 0)),
            ("12.5", (12, 500_000_000)),
            ("12.1234567899", (12, 123_456_789)),
            ("-1.25", (-2, 750_000_000)),
            ("-3", (-3, 0)),
        ] {
            assert_eq!(time(text.as_bytes()), Ok(Some(expected)), "{text}");
        }
        for text in [".5", "1.x", "x", "--1"] {
            time(text.as_bytes()).unwrap_err();
        }
    }
}
