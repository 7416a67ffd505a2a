//! Parses where the data of a sparse file is: the formats of GNU tar.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::archive::{ArchiveInput, BLOCK_BYTES, TarArchive, number};
use super::error::UnpackError;
use super::pax;

/// Limit of segments: more than any file of an image has, in less than a MiB of memory.
const MAX_SEGMENTS: usize = 1 << 15;

/// Segment of a file that is not a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseSegment {
    pub offset: u64,
    pub length: u64,
}

/// The layout of a sparse file.
pub struct SparseMap {
    pub size: u64,
    pub segments: Vec<SparseSegment>,
}

/// Reads the map of a sparse file; returns `None` for other files.
pub fn read<R: ArchiveInput>(
    archive: &mut TarArchive<R>,
    header: &Header,
    is_old: bool,
    pax: &pax::SparseKeys,
) -> Result<Option<SparseMap>, UnpackError> {
    let (size, numbers) = if is_old {
        read_oldest_format(archive, header)?
    } else if pax.is_in_data {
        (pax.size, in_data(archive)?)
    } else if pax.size.is_some() || !pax.map.is_empty() {
        (pax.size, pax.map.clone())
    } else {
        return Ok(None);
    };
    let map = size.and_then(|size| check(size, &numbers, archive.unread_bytes()));
    map.map(Some).ok_or_else(|| {
        archive.malformed_error("the map of a sparse file is malformed or does not match its data")
    })
}

/// Checks that the segments are in order, within the file, and in total as long as the data.
fn check(size: u64, numbers: &[u64], data_bytes: u64) -> Option<SparseMap> {
    let (pairs, []) = numbers.as_chunks::<2>() else { return None };
    let mut end = 0;
    let mut sum = 0_u64;
    let mut segments = Vec::with_capacity(pairs.len());
    for &[offset, length] in pairs {
        if offset < end {
            return None;
        }
        end = offset.checked_add(length)?;
        sum = sum.checked_add(length)?;
        segments.push(SparseSegment { offset, length });
    }
    (end <= size && sum == data_bytes).then_some(SparseMap { size, segments })
}

/// Reads the oldest format: the map is in the header and in blocks between header and data.
fn read_oldest_format<R: ArchiveInput>(
    archive: &mut TarArchive<R>,
    header: &Header,
) -> Result<(Option<u64>, Vec<u64>), UnpackError> {
    let Some(gnu) = header.as_gnu() else {
        return Err(archive.malformed_error("a sparse file has no GNU tar header"));
    };
    let mut numbers = Vec::new();
    let mut add = |headers: &[GnuSparseHeader]| -> Option<()> {
        for header in headers.iter().filter(|header| !header.is_empty()) {
            for field in [&header.offset, &header.numbytes] {
                numbers.push(u64::try_from(number(field)?).ok()?);
            }
        }
        (numbers.len() <= 2 * MAX_SEGMENTS).then_some(())
    };
    let mut is_good = add(&gnu.sparse).is_some();
    let mut more = gnu.is_extended();
    while more && is_good {
        let mut block = GnuExtSparseHeader::new();
        is_good = archive.block(block.as_mut_bytes())? && add(block.sparse()).is_some();
        more = block.is_extended();
    }
    let size = number(&gnu.realsize).and_then(|size| u64::try_from(size).ok());
    Ok((size.filter(|_| is_good), numbers))
}

/// Reads format 1.0: the data starts with the number of segments, their offsets and lengths, one
/// per line, padded to the next block.
fn in_data<R: ArchiveInput>(archive: &mut TarArchive<R>) -> Result<Vec<u64>, UnpackError> {
    let mut numbers = Vec::new();
    let mut wanted = None;
    let mut digits = Vec::new();
    while wanted.is_none_or(|wanted| numbers.len() < wanted) {
        let mut is_good = archive.unread_bytes() >= BLOCK_BYTES;
        archive.data(BLOCK_BYTES, |piece| {
            for &byte in piece {
                if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                    break;
                }
                if byte != b'\n' {
                    digits.push(byte);
                    is_good &= digits.len() <= 20;
                    continue;
                }
                let number = pax::number(&digits).ok().flatten();
                digits.clear();
                match (number, wanted) {
                    (Some(number), Some(_)) => numbers.push(number),
                    (Some(count), None) => {
                        let count = usize::try_from(count).ok();
                        wanted = count.filter(|count| *count <= MAX_SEGMENTS).map(|n| n * 2);
                        is_good &= wanted.is_some();
                    }
                    (None, _) => is_good = false,
                }
                if !is_good {
                    break;
                }
            }
            Ok(())
        })?;
        if !is_good {
            return Err(archive.malformed_error("the map of a sparse file is malformed"));
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_map_must_be_ordered_and_within_the_file() {
        let is_good = |size, numbers: &[u64], data| check(size, numbers, data).is_some();
        assert!(is_good(100, &[0, 10, 20, 5, 100, 0], 15));
        assert!(is_good(100, &[], 0));
        assert!(!is_good(100, &[0, 10, 5, 5], 15));
        assert!(!is_good(100, &[90, 20], 20));
        assert!(!is_good(100, &[0, 10], 11));
        assert!(!is_good(100, &[0], 0));
        assert!(!is_good(100, &[u64::MAX, 2], 2));
    }
}
