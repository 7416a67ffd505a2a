//! Limits: what unpacking one layer may cost.

/// How much one layer may hold.
///
/// The defaults are far above what images need and far below what hurts a machine; a layer that
/// needs more is rejected with the limit's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the blob, of the archive when inflated, and of a sparse file with its holes.
    pub bytes: u64,
    /// How many times larger than the blob the inflated archive may be. The first GiB is free:
    /// a file full of zeros shrinks a thousandfold.
    pub ratio: u64,
    /// Files, directories, links and whiteouts together.
    pub entries: u64,
    /// Components of any path in it.
    pub depth: usize,
}

/// Inflated bytes that the ratio is not asked about.
pub(super) const RATIO_FREE_BYTES: u64 = 1 << 30;

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 64 << 30, ratio: 200, entries: 4_000_000, depth: 128 }
    }
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    Bytes(u64),
    Ratio(u64),
    Entries(u64),
    Depth(usize),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Limit::Ratio(ratio) => write!(f, "{ratio} times its compressed size"),
            Limit::Entries(entries) => write!(f, "{entries} entries"),
            Limit::Depth(depth) => write!(f, "{depth} components in a path"),
        }
    }
}
