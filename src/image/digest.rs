//! Digests: what content is called by.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use oci_spec::image::{Digest as SpecDigest, DigestAlgorithm};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256, Sha512};

/// The digest of some content, as `sha256:` or `sha512:` and lower-case hexadecimal digits.
///
/// One that exists is well-formed, so it can be a file name, and can be checked: the specification
/// allows algorithms that nobody here can compute.
///
/// ```
/// use oci_hooks::image::Digest;
///
/// let digest = Digest::of(b"hello");
/// assert_eq!(digest.algorithm().name(), "sha256");
/// assert!(digest.to_string().starts_with("sha256:2cf24dba"));
/// assert!("sha256:../../etc/passwd".parse::<Digest>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "SpecDigest")]
pub struct Digest(Box<SpecDigest>);

/// A way to compute digests that the OCI image specification registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// What nearly everything uses.
    Sha256,
    Sha512,
}

/// A text that is not a digest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid digest {text:?}: expected \"sha256:\" and 64 lower-case hexadecimal digits, or \"sha512:\" \
     and 128"
)]
#[non_exhaustive]
pub struct DigestError {
    pub text: String,
}

impl Algorithm {
    /// Returns the name that digests start with.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }
}

impl Digest {
    /// Returns the SHA-256 digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Hasher::hash(Algorithm::Sha256, bytes)
    }

    /// Returns how it was computed.
    pub fn algorithm(&self) -> Algorithm {
        match self.0.algorithm() {
            DigestAlgorithm::Sha256 => Algorithm::Sha256,
            _ => Algorithm::Sha512,
        }
    }

    /// Returns the hexadecimal digits, without the algorithm.
    pub fn hex(&self) -> &str {
        self.0.digest()
    }

    /// Returns the algorithm and the digits.
    pub fn as_str(&self) -> &str {
        (*self.0).as_ref()
    }

    /// Returns the name of a blob with this digest in an OCI layout.
    pub(super) fn blob_name(&self) -> String {
        format!("blobs/{}/{}", self.algorithm().name(), self.hex())
    }

    /// Returns whether this is the digest of these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        Hasher::hash(self.algorithm(), bytes) == *self
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digest = text.parse().map_err(|_| DigestError { text: text.to_owned() });
        digest.and_then(|digest: SpecDigest| digest.try_into())
    }
}

impl TryFrom<SpecDigest> for Digest {
    type Error = DigestError;

    /// Accepts the algorithms that are computed here.
    fn try_from(digest: SpecDigest) -> Result<Self, DigestError> {
        match digest.algorithm() {
            DigestAlgorithm::Sha256 | DigestAlgorithm::Sha512 => Ok(Digest(Box::new(digest))),
            _ => Err(DigestError { text: digest.to_string() }),
        }
    }
}

impl Ord for Digest {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for Digest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Computes a digest from bytes that come piece by piece.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    /// Returns a hasher that has seen nothing.
    pub fn new(algorithm: Algorithm) -> Self {
        Hasher(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// Hashes the bytes that come next.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// Returns the digest of everything seen.
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha256(state) => digest(Algorithm::Sha256, &state.finalize()),
            State::Sha512(state) => digest(Algorithm::Sha512, &state.finalize()),
        }
    }

    fn hash(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(algorithm.name().len() + 1 + 2 * bytes.len());
    text.push_str(algorithm.name());
    text.push(':');
    for byte in bytes {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text.parse().expect("it has the digits of its algorithm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_both_algorithms_are_computed_and_parsed() {
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        let digest: Digest = abc.parse().unwrap();
        assert_eq!(digest.hex().len(), 64);
        assert!(digest.is_of(b"abc") && !digest.is_of(b"abd"));
        let long = Hasher::hash(Algorithm::Sha512, b"abc");
        assert_eq!(long.hex().len(), 128);
        assert!(long.as_str().parse::<Digest>().unwrap().is_of(b"abc"));
    }

    #[test]
    fn a_digest_with_a_path_in_it_is_refused() {
        let hex = "a".repeat(64);
        for bad in [
            "".to_owned(),
            "sha256:".to_owned(),
            "sha256:../../x".to_owned(),
            format!("sha256:../../{}", &hex[6..]),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}a"),
            format!("sha512:{hex}"),
            format!("md5:{hex}"),
            format!("sha384:{}", "a".repeat(96)),
            format!("blake3:{hex}"),
            format!("SHA256:{hex}"),
            format!("sha256:{}/", &hex[1..]),
            format!(" sha256:{hex}"),
            hex.clone(),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
            assert!(serde_json::from_value::<Digest>(bad.into()).is_err());
        }
    }
}
